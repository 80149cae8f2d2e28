"""Submissions of the further scripts of tasks 2(b) and 5: overlapped, and by the wrapper."""

from .sharded import TASK_2B, changed
from .variants import Edit, File, Variant, script

SCALED = "                loss = loss * world.size * batches.examples / batches.total\n"
EXAMPLES = "                loss = loss * batches.examples / batches.total\n"

VARIATIONS_RIGHT = tuple(
    Variant(f"solution_{task}", task, note="the solution") for task in ("overlap", "uneven_ddp")
)
VARIATIONS_WRONG = (
    changed(
        "overlap_hides_nothing",
        "overlap",
        (File(script("overlap"), TASK_2B),),
        "collectives/not_overlapped",
        "2(b) under its name: all_reduce starts when the backward pass has ended",
    ),
    changed(
        "uneven_ddp_is_ddp",
        "uneven_ddp",
        (Edit(script("uneven_ddp"), SCALED, ""),),
        "gradients/mean_of_means",
        "the mean of the ranks' means",
    ),
    changed(
        "uneven_ddp_forgets_the_world_size",
        "uneven_ddp",
        (Edit(script("uneven_ddp"), SCALED, EXAMPLES),),
        "gradients/wrong_weights",
        "the wrapper divides by the world size, which the factor should make up for",
    ),
)
