"""What goes through a collective is recognized as the gradients, however it is cut, or not."""

import subprocess
import sys
from types import SimpleNamespace

from grading.checks.carried import payload_problem
from grading.worker.sketch import magnitudes
from tests.workers import ROOT

import pytest
import torch

torch.manual_seed(1)
SHAPES = ((300, 64), (64, 64), (64,), (64, 64), (64,), (2, 64), (2,))
GRADIENTS = [torch.randn(shape) ** 3 * 0.001 for shape in SHAPES]
GRADIENTS[0][100:] = 0  # words that are not in the batch
GRADIENTS[-1] += 0.3  # a bias with far larger gradients than the rest
FLAT = torch.cat([g.flatten() for g in GRADIENTS])
MEAN = FLAT.roll(7) * 0.9
WEIGHTS = torch.randn_like(FLAT)
HALF = FLAT[: FLAT.numel() // 2 + 1]


def call(tensor, op="allreduce", where="run_glue.py:7", given=None):
    """A collective as the probe logs it."""
    content = magnitudes([tensor] if given is None else given).tolist()
    return {"op": op, "elements": tensor.numel(), "where": where, "content": content} | {
        "backward": False
    }


def evidence_of(*of_ranks, ddp=False):
    """A step in which each rank makes some calls, and updates with MEAN."""
    ranks = [
        SimpleNamespace(
            ddp=ddp,
            steps=[
                SimpleNamespace(
                    collectives=list(calls),
                    held=FLAT.numel(),
                    content=magnitudes([MEAN]).tolist(),
                    own=[magnitudes([FLAT]).tolist()],
                )
            ],
        )
        for calls in of_ranks
    ]
    return SimpleNamespace(ranks=ranks)


def problem(*calls):
    """What is wrong with a rank's calls of all_reduce."""
    return payload_problem(evidence_of(calls), 0, 0, "all_reduce", ("allreduce",))


@pytest.mark.parametrize(
    "calls",
    [
        [call(FLAT)],
        [call(part) for part in FLAT.split(1000)],
        [call(g) for g in reversed(GRADIENTS)],
        [call(FLAT / 4)],
        [call(FLAT.double())],
        [call(FLAT.bfloat16())],
        [call(torch.cat([FLAT, torch.zeros(5000)]))],
        [call(torch.cat([FLAT, torch.tensor([0.7])]))],
        [call(FLAT), call(torch.full((100,), 2.5), where="run_glue.py:9")],
        [call(FLAT), call(FLAT, where="run_glue.py:9")],
        [call(FLAT), call(WEIGHTS, where="run_glue.py:9")],
    ],
    ids=[
        "flat",
        "slices",
        "tensors",
        "divided",
        "double",
        "bfloat16",
        "padded",
        "loss",
        "metrics",
        "twice",
        "weights",
    ],
)
def test_gradients_are_recognized(calls):
    assert not problem(*calls)


@pytest.mark.parametrize(
    ("calls", "words"),
    [
        ([], "carries 0 of"),
        ([call(HALF)], "of the"),
        ([call(torch.zeros_like(FLAT))], "only zeros"),
        ([call(torch.ones_like(FLAT))], "are not"),
        ([call(WEIGHTS)], "are not"),
        ([call(torch.cat([HALF, HALF]))], "are not"),
        ([call(HALF), call(torch.zeros_like(FLAT))], "are not"),
    ],
    ids=["nothing", "half", "zeros", "ones", "weights", "half_twice", "half_and_zeros"],
)
def test_anything_else_is_named(calls, words):
    assert words in problem(*calls)


def scattered(*given, root=0):
    """Of four ranks the calls of scatter, whose root is given these tensors."""
    calls = [[call(FLAT, "scatter", given=given if r == root else [])] for r in range(4)]
    return payload_problem(evidence_of(*calls), 0, 0, "scatter", ("scatter",))


def test_what_the_root_scatters_is_what_the_ranks_use():
    assert not scattered(*[MEAN] * 4)
    assert not scattered(*[MEAN * 4] * 4, root=3)
    assert "ranks use" in scattered(*[WEIGHTS] * 4)
    assert "only zeros" in scattered(*[torch.zeros_like(FLAT)] * 4)


def test_a_wrapper_must_reduce_in_the_backward_pass():
    evidence = evidence_of([call(FLAT)], ddp=True)
    assert "carries 0 of" in payload_problem(evidence, 0, 0, "all_reduce", ("allreduce",))
    evidence.ranks[0].steps[0].collectives[0]["backward"] = True
    assert not payload_problem(evidence, 0, 0, "all_reduce", ("allreduce",))


OBSERVED = """
import sys
from pathlib import Path
from types import SimpleNamespace

from grading.checks.carried import payload_problem
from grading.checks.reader import read_rank
from grading.worker.probe import Probe

import torch
import torch.distributed as dist


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.top = torch.nn.Embedding(30, 50), torch.nn.Linear(50, 1)

    def forward(self, input_ids):
        return self.top(self.words(input_ids).mean(dim=1))


def reduce_at_once(p):
    dist.all_reduce(p.grad)
    p.grad.fill_(1)  # whatever is in it afterwards


folder = Path(sys.argv[1])
for end in ("out", "err"):
    (folder / f"0.{end}").touch()
with (folder / "0.events").open("w") as file:
    Probe(file, str(folder), learning_rate=0.1).install()
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    model = Model()
    model.register_parameter("unused", torch.nn.Parameter(torch.zeros(5000)))
    optimizer = torch.optim.SGD(model.parameters())
    handles = []
    for way in ("cut", "dummies", "half", "during"):
        if way == "during":
            handles = [
                p.register_post_accumulate_grad_hook(reduce_at_once)
                for p in model.parameters()
            ]
        optimizer.zero_grad()
        model(torch.randint(1, 30, (8, 5))).square().mean().backward()
        flat = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
        if way == "cut":
            for part in flat.split(999):
                dist.all_reduce(part / 4)
        if way == "dummies":
            dist.all_reduce(torch.randn_like(flat))
        if way == "half":
            dist.all_reduce(flat[: len(flat) // 2])
        optimizer.step()
rank = read_rank(folder, 0)
print(rank.broken)
for number in range(4):
    print(payload_problem(SimpleNamespace(ranks=[rank]), number, 0, "all_reduce", ("allreduce",)))
"""


def test_the_probe_logs_what_collectives_carry(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", OBSERVED, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=ROOT,
    )
    broken, cut, dummies, half, during = done.stdout.splitlines()
    assert (broken, cut, during) == ("", "", ""), done.stderr
    assert "are not this rank's gradients" in dummies
    assert "of the 1,551 elements" in half
