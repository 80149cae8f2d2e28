"""What the grader sees of a model that is divided: its parts, their passes, what travels."""

from types import SimpleNamespace

from common.tasks import SCRIPTS
from grading.checks.borders import between_parts
from grading.checks.divided import divided, keeps, kept_by, order
from grading.checks.divided_causes import by_parts, explain_parts_loss
from grading.checks.evidence import Evidence
from grading.checks.exit_causes import explain_end
from grading.checks.graded_task import GradedTask
from grading.checks.observation import Evaluation, Forward, Observation, Rank, Step
from grading.checks.replicas import between_copies, replicas
from grading.inputs import SETTINGS
from grading.plan import Ended, Limits
from grading.results import FAILED, PASSED
from grading.worker.parts import among_zeros, ranges, size_of, sketches
from grading.worker.parts import parts_of as held_by
from grading.worker.probe import inner_model
from grading.worker.sketch import sketch

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

MICROBATCHES, OUTPUTS = 4, 100
NAMES = ("bert.embeddings.w", "bert.encoder.layer.0.w", "bert.encoder.layer.1.w", "classifier.w")
GPIPE, BY_TURNS = "FFFFBBBB", "FBFBFBFB"
RIGHT = {  # schedule -> the passes of four stages
    "naive": ["FB"] * 4,
    "gpipe": [GPIPE] * 4,
    "1f1b": [GPIPE, "FFFBFBBB", "FFBFBFBB", BY_TURNS],
}


def passes_of(letters, rows):
    """F and B as a step's passes; the forward passes share `rows` rows."""
    count = letters.count("F")
    shares = iter([rows[at::count] for at in range(count)])
    return [
        Forward(next(shares), True, True, 0.5, None, outputs=OUTPUTS) if each == "F" else None
        for each in letters
    ]


def worker(number, letters, names=(), value=1.0):
    """A stage's record of one step: it sends what it has to."""
    rows = [((row,), (0,), 1) for row in range(16)]
    names = list(names or NAMES[number : number + 1])
    gradients = np.full((len(names), 16), value)
    one = Step([], [], gradients, 0.1, "", gradients, [number] * len(names), norm=value)
    one.passes, one.memory = passes_of(letters, rows), {"weights": 400 * len(names)}
    count = letters.count("F")
    calls = [call("send", number + 1)] * count * (number < 3)
    calls += [call("send", number - 1)] * count * (number > 0)
    zeros = np.zeros_like(gradients)
    return Rank(names, [100] * len(names), start=zeros, steps=[one], collectives=calls)


def call(op, peer=None, elements=OUTPUTS, **more):
    """A collective's facts."""
    facts = {"op": op, "elements": elements, "bytes": 4 * elements, "step": 0, "where": "a.py:1"}
    return {**facts, "backward": False, "peer": peer, **more}


def task_of(name, workers, size=4, **reference):
    """A task whose replicas are divided over `size` workers, after one step."""
    seen = Observation(replicas(workers, size), Ended([0] * len(workers)))
    graded = GradedTask(SCRIPTS[name], len(workers) // size, 16, {}, {}, size)
    found = {"names": list(NAMES), "norm": [1.0], **reference} if reference else None
    graded.runs["plain"] = Evidence(SETTINGS["plain"], seen, found, "no reference")
    return graded


def pipeline(name, **changes):
    """A task with four stages that run as its schedule asks."""
    letters = changes.get("letters", RIGHT[SCRIPTS[name].schedule])
    return task_of(name, [worker(number, each) for number, each in enumerate(letters)])


def test_a_replica_is_what_one_worker_with_the_whole_model_would_be():
    workers = [worker(0, GPIPE, NAMES[:2], 2.0), worker(1, GPIPE, NAMES[2:], 3.0)]
    workers[0].out, workers[1].evaluations = "printed", [Evaluation(1, [], [0])]
    (one,) = replicas(workers, 2)
    assert one.names == list(NAMES)
    assert one.out == "printed"
    assert one.evaluations[0].predictions == [0]
    (step,) = one.steps
    assert step.gradients[:, 0].tolist() == [2, 2, 3, 3]
    assert (len(step.rows), step.loss, step.checksums) == (16, 0.5, [0, 0, 1, 1])
    assert step.norm == pytest.approx(np.hypot(2, 3))
    seen = Observation([one], Ended([0, 0]))
    assert seen.workers == workers
    assert len(replicas([*workers, *workers], 2)) == 2


@pytest.mark.parametrize("name", ["naive", "gpipe", "one_f_one_b", "library"])
def test_each_schedule_keeps_what_it_has_to(name):
    assert order(pipeline(name)).status == PASSED
    assert divided(pipeline(name)).status == PASSED
    assert between_parts(pipeline(name)).status == PASSED


def test_kept_micro_batches_are_counted():
    assert [keeps(passes_of(text, [])) for text in RIGHT["1f1b"]] == [4, 3, 2, 1]
    assert [kept_by("1f1b", 8, stage, 4) for stage in range(4)] == [4, 3, 2, 1]
    assert kept_by("gpipe", 8, 3, 4) == 8


@pytest.mark.parametrize(
    ("name", "letters", "words"),
    [
        ("one_f_one_b", RIGHT["gpipe"], "is GPipe's order"),
        ("one_f_one_b", [BY_TURNS] * 4, "the other stages wait"),
        ("gpipe", [BY_TURNS] * 4, "the other stages wait"),
        ("gpipe", RIGHT["1f1b"], "before all micro-batches have gone forward"),
        ("gpipe", ["FB"] * 4, "in 1 passes, not in 4 micro-batches"),
    ],
)
def test_another_order_is_named(name, letters, words):
    outcome = order(pipeline(name, letters=letters))
    assert (outcome.status, outcome.cause.name) == (FAILED, "wrong_order")
    assert words in outcome.cause.sentence


def test_a_tensor_on_two_stages_is_named():
    workers = [worker(n, GPIPE, NAMES[n : n + 1]) for n in range(3)]
    workers.append(worker(3, GPIPE, (NAMES[3], NAMES[0])))
    outcome = divided(task_of("gpipe", workers))
    assert (outcome.status, outcome.cause.name) == (FAILED, "not_divided")
    assert f"ranks 0 and 3 hold {NAMES[0]}" in outcome.cause.sentence


def test_a_part_that_keeps_the_whole_in_memory_is_not_divided():
    graded = pipeline("gpipe")
    graded.runs["plain"].ranks[0].workers[2].steps[0].memory["weights"] = 1600
    outcome = divided(graded)
    assert (outcome.status, outcome.cause.name) == (FAILED, "not_divided")
    assert "1,600 bytes" in outcome.got


@pytest.mark.parametrize(
    ("more", "cause"),
    [
        ([call("send", 2)], "wrong_border"),  # once more than there are activations
        ([call("send", 3)], "wrong_border"),  # to no neighbor
        ([call("broadcast")], "wrong_collective"),
        ([call("allreduce", elements=1)], ""),  # a norm
    ],
)
def test_only_what_the_borders_need_travels(more, cause):
    graded = pipeline("gpipe")
    graded.runs["plain"].ranks[0].workers[1].collectives += more
    assert between_parts(graded).cause.name == cause


@pytest.mark.parametrize(("elements", "cause"), [(100, ""), (0, "no_sync"), (200, "wrong_payload")])
def test_replicas_average_each_stage_once(elements, cause):
    workers = []
    for at in range(4):
        one = worker(at % 2, RIGHT["1f1b"][at % 2 + 2])
        for facts in (calls := [dict(c) for c in one.collectives]):
            facts["peer"] += at - at % 2
        inside = [c for c in calls if c["peer"] // 2 == at // 2]
        one.collectives = [*inside, call("allreduce", elements=elements)]
        workers.append(one)
    assert between_parts(task_of("grid", workers, 2)).cause.name == cause


def test_right_gradients_after_a_border_and_wrong_ones_before_it_point_at_it():
    wanted = np.ones((4, 16))
    for value, words in ((0.0, "stage 1 are zero"), (7.0, "stage 1 are wrong")):
        workers = [worker(n, GPIPE, value=value if n < 2 else 1.0) for n in range(4)]
        evidence = task_of("gpipe", workers, clipped=[wanted]).runs["plain"]
        cause = by_parts(evidence, 0, None)
        assert cause
        assert cause.name == "graph_cut"
        assert words in cause.sentence


def test_workers_that_read_different_rows_are_named():
    graded = pipeline("gpipe")
    evidence = graded.runs["plain"]
    assert explain_parts_loss(evidence, 0) is None
    evidence.ranks[0].workers[1].steps[0].passes[0].rows.pop()
    cause = explain_parts_loss(evidence, 0)
    assert cause
    assert cause.name == "parts_read_differently"


def test_neighbors_that_wait_for_each_other_are_named():
    workers = [worker(n, GPIPE) for n in range(2)]
    for number, one in enumerate(workers):
        one.collectives.append(call("send", 1 - number))
    ended = Ended([None, None], "idle", stacks=["", ""])
    seen = Observation(replicas(workers, 2), ended)
    _, _, cause = explain_end(seen, Limits())
    assert cause.name == "hang"
    assert "rank 0 in send to rank 1 (a.py:1), rank 1 in send to rank 0" in cause.sentence


def test_copies_of_a_tensor_must_stay_alike():
    workers = [worker(n, "FB", NAMES) for n in range(2)]
    for number, one in enumerate(workers):
        one.pieces = [False, True, True, False]
        one.steps[0].checksums = [5, number, number, 6]  # parts of matrices differ
    graded = task_of("tensor", workers, 2)
    assert between_copies(graded.runs["plain"], 0.1).step is None
    workers[1].steps[0].checksums[3], workers[1].steps[0].after = 7, np.full((4, 16), 9.0)
    found = between_copies(graded.runs["plain"], 0.1)
    assert (found.step, found.rank, found.tensor) == (1, 1, NAMES[3])


@pytest.mark.parametrize("dim", [0, 1])
def test_parts_of_a_matrix_add_up_to_it(dim):
    whole, total = torch.arange(24.0).reshape(4, 6), np.zeros(16)
    for rank in range(2):
        dist.init_process_group("fake", rank=rank, world_size=2, store=FakeStore())
        try:
            part = torch.nn.Parameter(whole.chunk(2, dim)[rank].clone())
            part.part_dim = dim  # pyright: ignore[reportAttributeAccessIssue]
            part.grad = 2 * part.detach()
            assert size_of(part) == whole.numel()
            assert among_zeros(part, part.detach()).count_nonzero() <= 12
            held = held_by([part])
            assert ranges([part], held) is None
            total += sketches([part], held, of_gradients=True)[0]
        finally:
            dist.destroy_process_group()
    assert np.allclose(total, sketch(2 * whole))


def test_the_model_is_what_takes_the_rows():
    class Inner(torch.nn.Linear):
        def forward(self, input_ids):
            return super().forward(input_ids)

    inner = Inner(2, 2)
    stage = torch.nn.Module()
    stage.module, stage.received = inner, torch.nn.Module()
    called = torch.nn.Module()
    called.stage = stage
    assert inner_model(called) is inner
    assert inner_model(inner) is inner
    two = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
    assert inner_model(two) is two
    assert inner_model(SimpleNamespace(forward=inner.forward)).forward == inner.forward
