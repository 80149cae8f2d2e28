"""The checks' own judgment: numbers found in a text, rows that ranks read, rates, the rubric."""

import subprocess
import sys
from types import SimpleNamespace

from common.errors import UserError
from grading import rubric
from grading.checks import CHECKS
from grading.checks.numbers_in_text import among_few, in_order, sources
from grading.checks.observation import Evaluation, Forward, Rank, Step
from grading.checks.output import other_metrics, timing
from grading.checks.reader import Reader
from grading.checks.replayed import comparable
from grading.checks.rows import batch, data, shuffle
from grading.checks.values import explain_rates
from grading.results import FAILED, PASSED
from grading.worker.sketch import pack

import numpy as np
import pytest

RANKS, BATCH, ROWS = 4, 4, 64


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("loss 0.6931 then 0.512, and 1.25e-1", 3),
        ("0.69310\n0.51200\n0.125", 3),
        ("0.512 0.6931 0.125", 1),  # in another order
        ("0.7 0.5 0.1", 0),  # too few digits to decide
        ("v0.6931 step10.512", 0),  # parts of words
        ("0.6932 0.512 0.125", 0),
        ('{"loss": 0.693100, "step": 1}\n{"loss": 0.512}', 2),
    ],
)
def test_numbers_are_found_as_rounded_as_they_are(text, found):
    assert in_order([0.6931, 0.512, 0.125], text) == found


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("acc = 0.6\nacc = 0.53\nacc = 0.5", 3),  # 0.6 and 0.5 are exact, as Python prints them
        ("acc = 0.6\nacc = 0.5\nacc = 0.5", 1),
        ("acc = 1\n0.5333\n0.50", 0),
    ],
)
def test_one_decimal_counts_where_it_is_the_whole_number(text, found):
    assert in_order([0.6, 16 / 30, 0.5], text, 6e-5) == found


def test_a_percentage_may_have_one_decimal():
    assert in_order([60.0, 1600 / 30, 50.0], "60.0% 53.3% 50.0%", 6e-3, 0.05) == 3
    assert in_order([60.0, 1600 / 30, 50.0], "60 53 50", 6e-3, 0.05) == 0


def test_collectives_before_the_backward_pass_carry_no_gradients_of_the_step():
    reader, rows = Reader(Rank()), {"input_ids": pack(np.ones((1, 4), np.int64))}
    collective = {"op": "broadcast", "elements": 1000, "backward": False, "where": "x.py:1"}
    reader.collective(**collective)
    reader.forward(True, (0.0, 0.0), True, rows, 0.5, None)
    reader.backward(0.5)
    assert not reader.collectives
    reader.collective(**collective)
    reader.backward(0.5)  # of a second batch of the same update
    assert len(reader.collectives) == 1


def task_of(order, epochs=2, size=BATCH):
    """A task whose rank r reads rows order(epoch, r), `size` at a time."""
    ranks = []
    for rank in range(RANKS):
        rows = [(row, (), 0) for epoch in range(epochs) for row in order(epoch, rank)]
        steps = [
            SimpleNamespace(rows=rows[at : at + size], forwards=[None])
            for at in range(0, len(rows), size)
        ]
        ends = [SimpleNamespace(after=len(order(0, rank)) // size)]
        ranks.append(SimpleNamespace(steps=steps, evaluations=ends))
    seen = SimpleNamespace(steps=len(ranks[0].steps), ranks=ranks, weighted=False)
    setting = SimpleNamespace(epochs=epochs)
    evidence = SimpleNamespace(ranks=ranks, seen=seen, setting=setting)
    return SimpleNamespace(
        task=SimpleNamespace(weighted=False),
        known_rows=lambda _, split="train": range(ROWS) if split == "train" else range(ROWS, 80),
        runs={"adamw": evidence},
        workers=RANKS,
        batch=BATCH,
        parts=[BATCH] * RANKS,
        rows=lambda *_: ROWS,
    )


def dealt(epoch, rank):
    """Rows dealt out in turn, in a different order every epoch."""
    return [(7 * row + 13 * epoch) % ROWS for row in range(rank, ROWS, RANKS)]


LOSSES = [0.6931, 0.7102, 0.6514, 0.6893, 0.7021]
GRID = "".join(f"loss {value / 10000:.4f}\n" for value in range(10000))
ZIGZAG = GRID + "".join(reversed(GRID.splitlines(keepends=True)))


@pytest.mark.parametrize("text", [5 * GRID, 5 * ZIGZAG])
def test_a_list_of_all_numbers_is_no_report(text):
    assert in_order(LOSSES, text) == len(LOSSES)
    assert not among_few(LOSSES, text)


@pytest.mark.parametrize(
    "line",
    [
        "loss {loss:.4f}\n",
        "step {step}, loss {loss:.3f}, mean 0.701{step}, {step}.25 s, acc 0.6875\n",
        "loss {loss}, norms 0.7123 0.6523 0.8312 1.1231 0.0012 0.9234 0.5512\n",
    ],
)
def test_losses_are_found_among_other_facts(line):
    text = "".join(line.format(step=step, loss=loss) for step, loss in enumerate(LOSSES))
    assert among_few(LOSSES, f"{GRID[:900]}{text}{GRID[:900]}")


def overlapping(start):
    """A stretch of the rows, as long as a share, from a quarter of a share times `start`."""
    return [(4 * start + row) % ROWS for row in range(ROWS // RANKS)]


def test_shares_dealt_out_again_in_every_epoch_are_right():
    task = task_of(dealt)
    assert [check(task).status for check in (batch, data, shuffle)] == [PASSED] * 3


@pytest.mark.parametrize(
    ("check", "order", "size", "cause"),
    [
        (data, lambda epoch, _: dealt(epoch, 0), BATCH, "same_data"),
        (data, lambda epoch, rank: dealt(epoch, min(rank, 2)), BATCH, "rows_shared"),
        (data, lambda epoch, rank: dealt(epoch, rank)[:8] * 2, BATCH, "rows_shared"),
        (data, lambda epoch, rank: dealt(epoch, rank)[:8], BATCH, "rows_missing"),
        (data, lambda epoch, rank: dealt(0, 0 if epoch else rank), BATCH, "same_data"),
        (data, lambda epoch, rank: overlapping(rank if epoch else 4 * rank), BATCH, "rows_shared"),
        (
            data,
            lambda epoch, rank: [row + 1 for row in dealt(epoch, rank)],
            BATCH,
            "dev_rows_trained",
        ),
        (data, lambda epoch, rank: [row + 99 for row in dealt(epoch, rank)], BATCH, "unknown_rows"),
        (shuffle, lambda _, rank: dealt(0, rank), BATCH, "not_reshuffled"),
        (batch, dealt, 4 * BATCH, "batch_not_divided"),
    ],
)
def test_rows_read_wrongly_are_found(check, order, size, cause):
    outcome = check(task_of(order, size=size))
    assert (outcome.status, outcome.cause.name) == (FAILED, cause)


def test_steps_are_compared_until_the_ranks_differ_in_rows():
    task = task_of(lambda epoch, rank: dealt(epoch, rank)[: 16 if rank else 15], epochs=1)
    assert comparable(task.runs["adamw"].seen) == 3


@pytest.mark.parametrize(
    ("rates", "cause"),
    [
        ([4e-5, 3e-5, 2e-5, 1e-5], None),
        ([3e-5, 2e-5, 1e-5, 0.0], None),  # scheduler.step() before optimizer.step()
        ([4e-5] * 4, "unscheduled"),
        ([4e-5, 2e-5, 0.0, 0.0], "wrong_rate"),
        ([1e-5, 4e-5, 2e-5, 0.0], "wrong_rate"),
        ([4e-5] * 14 + [3e-5] * 14 + [2e-5] * 14, "rate_per_epoch"),
    ],
)
def test_learning_rates_must_fall_to_zero(rates, cause):
    found = explain_rates(rates, 4e-5)
    assert (found and found.name) == cause


def test_the_rubric_names_checks_that_exist_and_needs_that_come_first():
    checks, before = [*rubric.load(), *rubric.load_further()], set()
    assert {check.name for check in checks} == set(CHECKS)
    for check in checks:
        assert {f"{check.task}/{need}" for need in check.needs} <= before | {
            f"{check.task}/{name}" for name in CHECKS if f"{check.task}/{name}" not in IDS
        }, check.id
        before.add(check.id)


IDS = {check.id for check in [*rubric.load(), *rubric.load_further()]}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("checks: {}\npoints: {task1: {runs: 1}}", "is not a valid rubric"),
        ("checks: {walks: {title: t, needs: []}}\npoints: {task1: {walks: 1}}", "no check walks"),
        ("checks: {runs: {title: t, needs: []}}\npoints: {task1: {runs: -1}}", "-1 points"),
        ("[", "is not a valid rubric"),
    ],
)
def test_an_invalid_rubric_is_reported(text, words, tmp_path):
    (tmp_path / "rubric.yaml").write_text(text)
    with pytest.raises(UserError, match=words):
        rubric.load(tmp_path / "rubric.yaml")


def test_the_grader_itself_loads_no_torch():
    # Only the fork server and its children do: a container of 768 MB has no room for it twice.
    code = "import grading.grader, sys; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout == "False\n", done.stderr


def test_a_log_line_behind_a_progress_bar_is_read_and_the_bar_is_not():
    rank = SimpleNamespace(
        out="", err="\r 20%|##  | 1/5 [00:00<00:00, loss=0.5121]INFO loss 0.6931\n"
    )
    seen = SimpleNamespace(written="")
    task = SimpleNamespace(runs={"adamw": SimpleNamespace(ranks=[rank], seen=seen)})
    text = sources(task, "adamw")[1]
    assert in_order([0.6931], text) == 1
    assert in_order([0.5121], text) == 0


def timed_task(printed, waited):
    """42 steps of 0.2 s, 3 s of pause; after step 21 rank 0 waits for the others to evaluate."""
    began, steps = 0.0, []
    for number in range(42):
        entered = began + (waited if number == 21 else 0.0)
        ended = entered + 0.2 + (3.0 if number == 0 else 0.0)
        forward = Forward([], True, True, 0.7, None, entered)
        steps.append(Step([forward], [0.7], None, 2e-5, "torch.optim.adamw", seconds=ended))
        began = ended
    evaluations = [Evaluation(21, [], [], left=steps[20].seconds)]
    rank = Rank(steps=steps, evaluations=evaluations, out=f"mean {printed} s")
    evidence = SimpleNamespace(
        ranks=[rank], seen=SimpleNamespace(written=""), setting=SimpleNamespace(pause=3.0)
    )
    return SimpleNamespace(runs={"adamw": evidence})


@pytest.mark.parametrize(
    ("printed", "waited", "cause"),
    [
        (0.2, 0.0, ""),
        (0.2, 2.0, ""),  # its clock starts when the batch is there
        (0.249, 2.0, ""),  # its clock runs while rank 0 waits for the others
        (0.249, 0.0, "first_iteration_timed"),
        (0.271, 0.0, "first_iteration_timed"),
        (0.32, 2.0, "first_iteration_timed"),
        (1.7, 0.0, "not_timed"),
    ],
)
def test_a_wait_after_an_evaluation_may_count_as_an_iterations_time(printed, waited, cause):
    assert timing(timed_task(printed, waited)).cause.name == cause


def test_other_metrics_of_uneven_shards_differ():
    shards = [[1.0, 0.0, 1.0, 1.0], [0.0, 1.0]]  # 4 right of 6
    assert other_metrics(shards) == (0.75, 4 / 6, (0.75 + 0.5) / 2)
