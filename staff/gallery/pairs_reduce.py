"""Pairs for task 2(b): each wrong one with a right one like it."""

from . import reductions
from .lines import AVERAGE, BACKWARD, CLIP, FORWARD, SCHEDULE, STEP, ZERO, after, before, without
from .variants import Edit, Variant, replaced, script

TASK = "task2b"
SCRIPT = script(TASK)


PASSES = """\
                half = len(batch["labels"]) // 2
                for part in (slice(None, half), slice(half, None)):
                    loss = model(**{key: tensor[part] for key, tensor in batch.items()}).loss / 2
                    loss.backward()
"""
FIRST_ONLY = PASSES + "                    if part.start is None:\n" + "            " + AVERAGE
EVERY_TIME = PASSES + "        " + AVERAGE
SECOND_STEP = AVERAGE.replace(
    "average", "if record.schedule.step % 2 == 0:\n                average", 1
)
PUBLISH = "            for p in model.parameters():\n                dist.broadcast(p.data, 0)\n"
CLEARED = "            optimizer.zero_grad(set_to_none=False)\n"
OWN_NORM = """\
            norms = sum(p.grad.norm() ** 2 for p in model.parameters()) ** 0.5
            dist.all_reduce(norms)
            for p in model.parameters():
                p.grad *= min(1.0, args.max_grad_norm / (norms.item() + 1e-6))
"""
AVERAGED_NORM = OWN_NORM.replace("            dist.all_reduce(norms)\n", "")
ALONE = "            if world.rank == 0:\n                dist.barrier()\n"
TOGETHER = "            dist.barrier()\n"


def wrong(name, edits, cause, note, check="gradients"):
    """A variant that fails one check."""
    return Variant(name, TASK, edits, (check,), cause, note)


def averaging(code):
    """Our function `code` for average_gradients."""
    return (replaced(SCRIPT, code),)


def two_passes(text):
    """Two passes per step, in the lines `text`, which average themselves."""
    return without(TASK, BACKWARD), without(TASK, AVERAGE), Edit(SCRIPT, FORWARD, text)


WRONG = (
    wrong(
        "reduces_then_broadcasts",
        averaging(reductions.reduced_to_root),
        "wrong_collective",
        "reduce to rank 0, and broadcast from there",
        "collectives",
    ),
    wrong(
        "gathers_on_all_ranks",
        averaging(reductions.gathered_by_all),
        "wrong_collective",
        "all_gather, and every rank takes the mean for itself",
        "collectives",
    ),
    wrong(
        "mean_not_copied_back",
        averaging(reductions.not_copied_back),
        "no_sync",
        "a copy is averaged, and p.grad stays as it was",
    ),
    wrong(
        "averages_among_neighbors",
        averaging(reductions.among_neighbors),
        "mixed",
        "groups of two ranks: each has the mean of two",
    ),
    wrong(
        "reduces_by_maximum",
        averaging(reductions.by_maximum),
        "wrong_reduction",
        "ReduceOp.MAX: the largest of the ranks' gradients, element by element",
    ),
    wrong(
        "reads_before_wait",
        averaging(reductions.read_before_done),
        "no_sync",
        "the result of an asynchronous all_reduce is used before it is waited for",
    ),
    wrong(
        "divides_differently_by_rank",
        averaging(reductions.divided_by_rank),
        "mixed",
        "rank 0 divides by N, all others by N - 1",
    ),
    wrong(
        "syncs_every_other_step",
        (Edit(SCRIPT, AVERAGE, SECOND_STEP),),
        "no_sync",
        "gradients are averaged in every second step only",
    ),
    wrong(
        "root_dictates_weights",
        (without(TASK, AVERAGE), after(TASK, SCHEDULE, PUBLISH)),
        "parameters_averaged",
        "rank 0's weights are broadcast after every update instead",
    ),
    wrong(
        "clears_before_averaging",
        (before(TASK, AVERAGE, CLEARED),),
        "zeroed",
        "zero_grad() stands between backward and the averaging",
    ),
    wrong(
        "syncs_after_the_first_pass",
        two_passes(FIRST_ONLY),
        "averaged_too_early",
        "two passes per step, and the second one's gradients are not averaged",
    ),
    wrong(
        "clips_by_sum_of_norms",
        (Edit(SCRIPT, CLIP, OWN_NORM),),
        "scaled",
        "clips by the norms of all ranks added up, after averaging",
        "clipping",
    ),
    wrong(
        "barrier_on_one_rank",
        (after(TASK, SCHEDULE, ALONE),),
        "hang",
        "only rank 0 enters a barrier after every step",
        "runs",
    ),
)
RIGHT = (
    Variant(
        "mean_copied_back",
        TASK,
        averaging(reductions.copied_back),
        note="a copy is averaged, and put into p.grad",
    ),
    Variant(
        "averages_in_a_new_group",
        TASK,
        averaging(reductions.in_a_new_group),
        note="a new group of all ranks in every step",
    ),
    Variant(
        "reads_after_wait",
        TASK,
        averaging(reductions.read_when_done),
        note="the result of an asynchronous all_reduce is used after it is waited for",
    ),
    Variant(
        "root_repeats_weights",
        TASK,
        (after(TASK, SCHEDULE, PUBLISH),),
        note="rank 0's weights are broadcast after every update, and are the same anyway",
    ),
    Variant(
        "clears_after_the_update",
        TASK,
        (without(TASK, ZERO), after(TASK, STEP, CLEARED)),
        note="zero_grad() stands after the update",
    ),
    Variant(
        "syncs_after_every_pass",
        TASK,
        two_passes(EVERY_TIME),
        note="two passes per step, and gradients are averaged after each of them",
    ),
    Variant(
        "clips_by_hand",
        TASK,
        (Edit(SCRIPT, CLIP, AVERAGED_NORM),),
        note="clips by hand, by the norm of the averaged gradients",
    ),
    Variant(
        "barrier_on_all_ranks",
        TASK,
        (after(TASK, SCHEDULE, TOGETHER),),
        note="all ranks enter a barrier after every step",
    ),
)
