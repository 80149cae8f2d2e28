"""What the grader sees of weights that are cut: whose elements they are, and how many bytes."""

from types import SimpleNamespace

from common.shards import Shards
from grading.checks.evidence import Evidence
from grading.checks.observation import Observation, Rank, Step
from grading.checks.sharded import overlapping, shards, wrong_gather
from grading.inputs import SETTINGS
from grading.plan import Ended
from grading.results import FAILED, PASSED
from grading.worker.parts import held_bytes, outside, parts_of, ranges, sketches
from grading.worker.sketch import sketch

import numpy as np
import pytest
import torch

SIZES = [
    (7, 5),
    (7,),
    (3, 7),
    (3,),
]  # 56 elements decay, 10 do not: these make 4 slices of 3


def cut_over(ranks):
    """The same model on every rank, in slices, after a backward pass of the same gradients."""
    found = []
    for rank in range(ranks):
        torch.manual_seed(5)
        model = torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.Linear(7, 3))
        world = SimpleNamespace(rank=rank, size=ranks)
        sliced = Shards(model, world, lambda flat, w: flat.chunk(w.size)[w.rank].clone())
        model(torch.ones(2, 5)).square().sum().backward()
        optimizer = torch.optim.AdamW([p for _, p in sliced.named_parameters()])
        found.append((list(model.parameters()), optimizer))
    return found


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_the_ranks_slices_are_found_in_the_weights_and_add_up_to_them(ranks):
    torch.manual_seed(5)
    whole = torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.Linear(7, 3))
    whole(torch.ones(2, 5)).square().sum().backward()
    cut = cut_over(ranks)
    of_ranks = [parts_of(named, optimizer) for named, optimizer in cut]
    got = sum(sketches(cut[0][0], parts, of_gradients=True) for parts in of_ranks)
    wanted = np.stack([sketch(p.grad) for p in whole.parameters()])
    assert np.allclose(got, wanted, atol=1e-6)
    held = [ranges(cut[0][0], parts) for parts in of_ranks]
    if ranks == 1:
        assert held == [None]
        return
    for at, shape in enumerate(SIZES):
        elements = [e for of_one in held for first, last in of_one[at] for e in range(first, last)]
        assert sorted(elements) == list(range(np.prod(shape)))


def test_padding_with_gradients_is_seen():
    (named, optimizer), *_ = reversed(cut_over(4))  # the last rank's slices end in zeros
    assert outside(parts_of(named, optimizer), optimizer) == 0
    optimizer.param_groups[0]["params"][1].grad[-1] = 1
    assert outside(parts_of(named, optimizer), optimizer) == 1


def test_bytes_are_those_of_what_is_kept_in_memory():
    named, optimizer = cut_over(4)[0]
    optimizer.step()
    held = held_bytes(named, optimizer)
    assert held["weights"] == 4 * 66 + 4 * 2  # 56 weights, and 10 biases padded to 12
    assert held["gradients"] == 4 * (14 + 3)
    assert held["optimizer_state"] == 2 * 4 * (14 + 3) + 2 * 4  # and each slice's count of steps


def seen_of(memory, parts=(None, None)):
    """A task of two ranks, which shards the optimizer's state, after one step."""
    zeros = np.zeros((1, 16))
    ranks = []
    for held, part in zip(memory, parts, strict=True):
        one = Step([], [], zeros, 0.1, "", zeros, memory={"optimizer_state": held}, parts=part)
        ranks.append(Rank(["w"], [100], start=zeros, steps=[one]))
    seen = Observation(ranks, Ended([0, 0]))
    task = SimpleNamespace(sharded=("optimizer_state",))
    return SimpleNamespace(task=task, runs={"plain": Evidence(SETTINGS["plain"], seen, why="-")})


def test_a_worker_may_hold_its_part_and_room_for_padding():
    assert shards(seen_of([400, 420])).status == PASSED
    outcome = shards(seen_of([400, 800]))
    assert (outcome.status, outcome.cause.name) == (FAILED, "not_sharded")
    assert "rank 1" in outcome.where
    assert outcome.got == "800 bytes, which is 100.0%"


def test_parts_that_overlap_are_not_added_up():
    halves = [[[0, 50]]], [[[50, 100]]]
    assert not overlapping(seen_of([0, 0], halves).runs["plain"].seen)
    assert overlapping(seen_of([0, 0], ([[[0, 60]]], [[[50, 100]]])).runs["plain"].seen)


@pytest.mark.parametrize(
    ("twice", "gathered", "cause"),
    [
        (False, 25, None),
        (False, 0, "not_gathered"),
        (False, 100, "wrong_payload"),
        (True, 50, None),
        (True, 60, "wrong_payload"),
    ],
)
def test_each_rank_gathers_its_part(twice, gathered, cause):
    found = wrong_gather(twice, gathered, 25)
    assert (found and found.name) == cause
