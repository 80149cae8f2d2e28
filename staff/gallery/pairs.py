"""All pairs of a wrong submission and a right one that looks like it."""

from . import (
    pairs_channels,
    pairs_data,
    pairs_gather,
    pairs_output,
    pairs_reduce,
    pairs_update,
    pairs_wrapper,
)

TOPICS = (
    pairs_channels,
    pairs_gather,
    pairs_reduce,
    pairs_wrapper,
    pairs_update,
    pairs_data,
    pairs_output,
)
WRONG = tuple(variant for topic in TOPICS for variant in topic.WRONG)
RIGHT = tuple(variant for topic in TOPICS for variant in topic.RIGHT)
