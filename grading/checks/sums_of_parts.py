"""What travels where workers hold parts of matrices: sums of their outputs, and of gradients."""

import re

from grading import inputs
from grading.checks.observation import BOOKKEEPING, Rank
from grading.checks.sharded import FEW, ROOM
from grading.results import Cause

LAYER = re.compile(r"encoder\.layer\.(\d+)\.")
SUMS = 2  # of a layer's activations, in each direction


def sums_problem(worker: Rank, number: int) -> Cause | None:
    """What is wrong with the sums of a worker in a step (from 0); None if nothing is."""
    rows = step_rows(worker, number)
    each, layers = SUMS * width_of(worker), layers_of(worker)
    tokens = sum(len(ids) for ids, _, _ in rows)
    least = (1 - FEW) * each * ((layers - 1) * tokens + len(rows))  # of the last layer, [CLS] alone
    most = ROOM * each * layers * len(rows) * inputs.LENGTH
    forward, back = summed(worker, number)
    for count, what in (
        (forward, "the forward pass: add up the workers' outputs after each matrix with columns"),
        (back, "the backward pass: add up the gradients of what all workers' parts read"),
    ):
        if count < least:
            sentence = f"{count:,} of {least:,.0f} elements are summed in {what}"
            return Cause("parts_not_summed", sentence)
    if max(forward, back) > most or back > ROOM * forward:
        sentence = (
            f"{forward:,} elements are summed forward and {back:,} back: two sums in each "
            "direction are enough for a layer, one for query, key and value together"
        )
        return Cause("wrong_payload", sentence)
    return None


def step_rows(worker: Rank, number: int) -> list:
    """The rows that a worker read for an update."""
    return [row for one in worker.steps[number].passes if one for row in one.rows]


def sums_text(worker: Rank) -> str:
    """What a worker passes to all_reduce in the first step, in words."""
    forward, back = summed(worker, 0)
    return f"{forward:,} elements summed forward and {back:,} back, in {layers_of(worker)} layers"


def summed(worker: Rank, number: int) -> tuple[int, int]:
    """(forward, back): the elements that a worker passes to all_reduce in a step."""
    found = {False: 0, True: 0}
    for call in worker.collectives:
        if call["step"] == number and call["op"] == "allreduce" and call["elements"] > BOOKKEEPING:
            found[bool(call["backward"])] += call["elements"]
    return found[False], found[True]


def layers_of(worker: Rank) -> int:
    """How many encoder layers a worker has parts of."""
    return len({match[1] for match in map(LAYER.search, worker.names) if match})


def width_of(worker: Rank) -> int:
    """The model's hidden units: as many as its first LayerNorm has biases."""
    pairs = zip(worker.names, worker.sizes, strict=True)
    return next((size for name, size in pairs if name.endswith("LayerNorm.bias")), 0)
