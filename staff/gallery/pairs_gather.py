"""Pairs for task 2(a): each wrong function, for average_gradients, with a right one like it."""

from . import gathers
from .variants import Variant, replaced, script


def wrong(name, code, cause, note):
    """A variant whose gradients are wrong."""
    return Variant(name, "task2a", (replaced(script("task2a"), code),), ("gradients",), cause, note)


def right(name, code, note):
    """A variant that is right."""
    return Variant(name, "task2a", (replaced(script("task2a"), code),), note=note)


WRONG = (
    wrong(
        "scatters_one_mean",
        gathers.first_copy_only,
        "only_root_has_mean",
        "the root puts the mean in the first place of the list only: others get their own back",
    ),
    wrong(
        "gathers_into_one_tensor",
        gathers.aliased,
        "rank_left_out",
        "[tensor] * world_size: all places of the list are one tensor, and the last rank stays",
    ),
    wrong(
        "counts_the_root_twice",
        gathers.root_twice,
        "mixed",
        "the sum starts as rank 0's copy, and then rank 0's copy is added",
    ),
    wrong(
        "counts_from_rank_1",
        gathers.without_root,
        "rank_left_out",
        "the sum starts with zeros and the loop at rank 1",
    ),
    wrong(
        "scatters_what_it_gathered",
        gathers.sent_back_as_gathered,
        "no_sync",
        "the mean is computed, and the gathered copies are scattered",
    ),
    wrong("gathers_in_float16", gathers.in_half, "rounded", "gradients travel in float16"),
    wrong(
        "weights_by_rank",
        gathers.weighted_by_rank,
        "mixed",
        "rank r counts r + 1 times in the mean",
    ),
)
RIGHT = (
    right("scatters_every_mean", gathers.every_copy, "every place of the list gets the mean"),
    right(
        "gathers_into_views", gathers.views_of_one, "the places of the list are rows of one tensor"
    ),
    right(
        "adds_to_the_roots_own", gathers.from_roots_own, "the sum starts as rank 0's own gradients"
    ),
    right(
        "counts_from_zeros",
        gathers.from_zeros,
        "the sum starts with zeros, the loop at the last rank",
    ),
    right(
        "overwrites_what_it_gathered",
        gathers.sent_back_overwritten,
        "the gathered copies are overwritten by the mean and scattered",
    ),
    right("gathers_in_float64", gathers.in_double, "gradients travel in float64"),
    right("weights_alike", gathers.weighted_alike, "a mean with weights, which are all alike"),
)
