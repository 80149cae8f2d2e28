"""Checks of tasks whose workers each keep a part: its size, what travels, and what is saved."""

from itertools import product

from common.tasks import Task
from common.units import PER_WEIGHT
from grading.checks.evidence import Evidence, distances
from grading.checks.graded_task import GradedTask
from grading.checks.observation import Observation
from grading.checks.saved_model import FILE
from grading.results import Cause, Outcome, failed, passed, unknown

import numpy as np

ROOM = 1.05  # of a worker's part: it is padded, and AdamW counts its steps
FEW = 0.05  # of the weights: a collective of fewer elements carries norms, losses or predictions
REDUCING = ("allreduce", "reduce_scatter", "alltoall")  # what the process group calls them
GATHERING = ("allgather",)
SAVED = 1e-6  # of the norm of a tensor


def shards(graded: GradedTask) -> Outcome:
    """No rank holds more than its part of what the task shards."""
    most: dict[str, float] = {}
    for setting, evidence in graded.runs.items():
        for rank, number in product(range(evidence.size), range(evidence.seen.steps)):
            one = evidence.ranks[rank]
            held = one.steps[number].memory
            for what in graded.task.sharded:
                whole = PER_WEIGHT[what] * sum(one.sizes)
                part = held.get(what, 0) / whole
                most[what] = max(most.get(what, 0.0), part)
                if part > ROOM / evidence.size:
                    name = what.replace("_", " ")
                    return failed(
                        f"at most {ROOM / evidence.size:.1%} of the {name}, which has {whole:,} "
                        "bytes in all",
                        f"{held[what]:,} bytes, which is {part:.1%}",
                        f"setting {setting}, step {number + 1}, rank {rank}, after the update",
                        Cause("not_sharded", unsharded_text(what, part)),
                    )
    return passed(", ".join(f"{part:.1%} of the {what}" for what, part in most.items()))


def unsharded_text(what: str, part: float) -> str:
    """Why a rank may hold too much."""
    if what == "gradients":
        return (
            "a view of a bucket's gradients keeps all of it in memory: return a tensor of its own"
        )
    if what == "weights":
        return "the weights are not cut: call fully_shard before the first step, over all ranks"
    extent = "all" if part > ROOM * 0.95 else "too many"
    return f"the optimizer was given {extent} of the weights: give it this rank's part alone"


def overlapping(seen: Observation) -> bool:
    """Whether some elements of the weights are updated by several ranks, though not by all."""
    steps = [rank.steps[0] for rank in seen.ranks]
    if any(step.parts is None for step in steps):
        return False
    sizes = seen.ranks[0].sizes
    held = [[sum(b - a for a, b in of_one) for of_one in step.parts or ()] for step in steps]
    return bool((np.sum(held, axis=0) > np.array(sizes)).any())


def travelled(evidence: Evidence, rank: int, number: int) -> tuple[dict[str, int], bool]:
    """Operation -> elements that a rank passed to it from a step (from 0) to the next forward pass.

    The second is whether the next forward pass has come; an evaluation gathers, too, and nothing
    that comes after an update that it follows is counted.
    """
    one, found = evidence.ranks[rank], evidence.elements_by_op(number, rank)
    evaluated = any(each.after == number + 1 for each in one.evaluations)
    if evaluated or number + 1 >= evidence.seen.steps:
        return found, False
    for op, count in evidence.elements_by_op(number, rank, late=True).items():
        found[op] = found.get(op, 0) + count
    return found, True


def explain_traffic(task: Task, evidence: Evidence, rank: int, number: int) -> Cause | None:
    """What is wrong with a rank's collectives at a step (from 0); None if nothing is."""
    one, size = evidence.ranks[rank], sum(evidence.ranks[rank].sizes)
    found, complete = travelled(evidence, rank, number)
    others = {op for op, count in found.items() if count > FEW * size} - {*REDUCING, *GATHERING}
    if others:
        asked = " and ".join(task.collectives)
        sentence = f"task {task.title} asks for {asked}, not for {'/'.join(sorted(others))}"
        return Cause("wrong_collective", sentence)
    reduced = sum(found.get(op, 0) for op in REDUCING)
    if reduced < size:
        sentence = f"{reduced:,} of the {size:,} elements of the gradients are reduced"
        return Cause("no_sync" if reduced < FEW * size else "wrong_payload", sentence)
    if reduced > ROOM * size:
        return Cause(
            "wrong_payload",
            f"{reduced:,} elements are reduced, {reduced / size:.2f} times as many as the "
            "gradients have: reduce every gradient once",
        )
    if not complete or one.steps[number].parts is None:
        return None
    gathered = sum(found.get(op, 0) for op in GATHERING)
    return wrong_gather("weights" in task.sharded, gathered, size / evidence.size)


def wrong_gather(twice: bool, gathered: int, part: float) -> Cause | None:
    """What is wrong with the elements that a rank passes to all_gather; None if nothing is.

    It is to pass its part of the weights once, or, where the weights themselves are sharded, at
    most twice: for the forward and for the backward pass.
    """
    if gathered < (1 - FEW) * part:
        sentence = f"{gathered:,} elements are gathered of the {part:,.0f} that each rank updates"
        return Cause("not_gathered", sentence)
    if gathered > (1 + twice) * ROOM * part:
        return Cause(
            "wrong_payload",
            f"this rank passes {gathered:,} elements to all_gather, {gathered / part:.2f} times as "
            "many as its part of the weights has: pass its own slices alone",
        )
    return None


def explain_gather(evidence: Evidence, step: int, rank: int) -> Cause | None:
    """Why whole weights are wrong after an update (from 0) of this rank's part of them."""
    one = evidence.ranks[rank]
    now = one.steps[step]
    if now.parts is None or one.parts is not None or now.updated is None:
        return None
    if now.after is now.updated:
        return Cause(
            "not_gathered",
            "after the update every rank has new values in its own part of the weights alone: "
            "gather those of the others",
        )
    before = one.steps[step - 1].after if step else one.start
    if np.array_equal(now.after, before):
        return Cause(
            "gathered_old_weights",
            "what is gathered after the update are the weights before it: pass the slices that "
            "the optimizer has updated",
        )
    return None


def by_shards(evidence, step, _) -> Cause | None:
    """Slices of gradients that are each clipped by their own norm, or whose padding counts."""
    steps = [rank.steps[step] for rank in evidence.ranks]
    most = evidence.setting.max_grad_norm
    if evidence.seen.sharded and not any(one.held for one in steps):
        return Cause(
            "not_updated",
            "what the optimizer updates has no gradients: make it after the weights are sharded, "
            "with this rank's parts of them",
        )
    if any(one.parts is None for one in steps):
        return None
    if not any(evidence.elements_by_op(step, rank) for rank in range(evidence.size)):
        return Cause("no_sync", "every rank updates its part with its own gradients alone")
    if (
        evidence.reference["norm"][step] > most
        and all(one.norm <= most * 1.001 for one in steps)
        and sum(one.norm**2 for one in steps) > 1.1 * most**2
    ):
        return Cause(
            "clipped_by_local_norm",
            "every rank clips its part of the gradients by the norm of that part: add up the "
            "squares of all ranks' norms with all_reduce, and clip by the root of the sum",
        )
    if any(one.outside for one in steps):
        return Cause(
            "padding_counted",
            f"{max(one.outside for one in steps)} elements that pad the slices have gradients, "
            "which count in the norm: pad with zeros",
        )
    return None


def saved(graded: GradedTask) -> Outcome:
    """The saved model has all weights, whole, as they are after the last update."""
    evidence = graded.runs["adamw"]
    if evidence.reference is None:
        return unknown(evidence.why)
    found, names = evidence.seen.saved, evidence.reference["names"]
    expected = f"{FILE} with the weights after the last update, whole"
    where = "the files in --output_dir"
    lacking = [name for name in names if name not in found]
    if lacking:
        got = f"a file without {lacking[0]}" if found else "no such file"
        return failed(expected, got, where, Cause("not_saved", NOT_SAVED))
    wanted = evidence.weights(evidence.seen.steps - 1, 0)
    off = distances(np.stack([found[name] for name in names]), wanted)
    off /= np.maximum(np.linalg.norm(wanted, axis=1), 1e-30)
    if off.max() > SAVED:
        got = f"{names[int(off.argmax())]} is off by {off.max():.2g} of its norm"
        return failed(expected, got, where, Cause("saved_wrong", SAVED_WRONG))
    return passed(f"{len(found)} tensors, whole")


NOT_SAVED = (
    "a later run, or task 1, could not load the model: gather the weights on all ranks, and let "
    "rank 0 save them under their own names"
)
SAVED_WRONG = "what is saved is not what was trained: a part of the weights, or an earlier state"
