"""Wrong submissions that end late: what they did before earns its points."""

from .lines import AVERAGE, EVALUATE, LOADER, SAMPLER, without
from .variants import Edit, Variant, script

ALL_ROWS = Edit(LOADER, SAMPLER, "DistributedSampler(features, 1, 0, seed=args.seed)")
ASSERTED = """\
        assert world.size == 1
"""
ON_RANK_0 = """\
        if world.rank == 0:
            record.end_epoch(epoch, evaluate(model, data, world))
"""
ENDINGS = (
    Variant(
        "four_independent_runs",
        "task2b",
        (ALL_ROWS, without("task2b", AVERAGE)),
        ("data", "collectives"),
        "same_data",
        "task 1 as it is on every rank: all rows, no synchronization",
    ),
    Variant(
        "asserts_in_evaluation",
        "task2a",
        (Edit(script("task2a"), EVALUATE, ASSERTED + EVALUATE),),
        ("runs",),
        "crashed",
        "an assertion fails before the first evaluation, after a right epoch",
    ),
    Variant(
        "evaluates_on_rank_0_only",
        "task2b",
        (Edit(script("task2b"), EVALUATE, ON_RANK_0),),
        ("runs",),
        "evaluated_alone",
        "rank 0 alone evaluates, with collectives; the others wait for it in the next epoch",
    ),
)
