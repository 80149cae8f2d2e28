"""Wrong submissions whose mistake is in the synchronization, or in what is synchronized."""

from . import mistakes
from .lines import (
    AVERAGE,
    BACKWARD,
    CLIP,
    FORWARD,
    IMPORT_CLIP,
    IMPORT_DDP,
    IMPORT_DIST,
    OPTIMIZER,
    SCHEDULE,
    WRAP,
    after,
    before,
    clipped_first,
    unwrapped,
    with_torch,
    without,
)
from .variants import Edit, Variant, replaced, script

BY_HAND = """\
            for p in model.parameters():
                dist.all_reduce(p.grad)
                p.grad /= world.size
"""


def wrong(name, task, code, cause, note, check="gradients"):
    """A variant with our function `code` for average_gradients."""
    return Variant(name, task, (replaced(script(task), code),), (check,), cause, note)


GRADIENTS = (
    wrong(
        "summed_not_divided_2a",
        "task2a",
        mistakes.gather_summed,
        "summed",
        "the root scatters the sum: the division by the world size is missing",
    ),
    wrong(
        "summed_not_divided_2b",
        "task2b",
        mistakes.reduce_summed,
        "summed",
        "all_reduce sums, and nothing divides by the world size",
    ),
    wrong(
        "divided_twice_2a",
        "task2a",
        mistakes.gather_divided_twice,
        "divided_twice",
        "divided before the gather, and the root takes the mean once more",
    ),
    wrong(
        "divided_twice_2b",
        "task2b",
        mistakes.reduce_divided_twice,
        "divided_twice",
        "divided before ReduceOp.AVG, which divides, too",
    ),
    Variant(
        "loss_divided_and_averaged",
        "task2b",
        (Edit(script("task2b"), BACKWARD, BACKWARD.replace("loss", "(loss / world.size)")),),
        ("gradients",),
        "divided_twice",
        "the loss is divided by the world size, and the gradients are averaged besides",
    ),
    Variant(
        "clipped_before_averaging_2a",
        "task2a",
        clipped_first("task2a"),
        ("clipping",),
        "clipped_before_average",
        "every rank clips its own gradients, then they are averaged",
    ),
    Variant(
        "clipped_before_averaging_2b",
        "task2b",
        clipped_first("task2b"),
        ("clipping",),
        "clipped_before_average",
        "every rank clips its own gradients, then all_reduce",
    ),
    Variant(
        "no_synchronization_2a",
        "task2a",
        (without("task2a", AVERAGE),),
        ("gradients",),
        "no_sync",
        "average_gradients is written, but never called",
    ),
    wrong(
        "no_synchronization_2b",
        "task2b",
        mistakes.nothing,
        "no_sync",
        "average_gradients does nothing",
    ),
    Variant(
        "calls_the_wrapped_module",
        "task3",
        (Edit(script("task3"), FORWARD, FORWARD.replace("model(", "model.module(")),),
        ("gradients",),
        "no_sync",
        "the forward pass goes past DistributedDataParallel, whose hooks then do nothing",
    ),
    Variant(
        "no_synchronization_4",
        "task4",
        (without("task4", AVERAGE),),
        ("gradients",),
        "no_sync",
        "traffic is measured, but nothing is averaged",
    ),
    Variant(
        "averages_after_the_update",
        "task2a",
        (without("task2a", AVERAGE), after("task2a", SCHEDULE, AVERAGE)),
        ("gradients",),
        "averaged_too_late",
        "gradients are averaged after optimizer.step(): the update uses each rank's own",
    ),
    wrong(
        "only_rank0_has_mean",
        "task2a",
        mistakes.gather_without_scatter,
        "only_root_has_mean",
        "gathered and averaged on rank 0, never scattered",
    ),
    wrong(
        "keeps_mean_on_rank0",
        "task2b",
        mistakes.reduce_on_rank_0_only,
        "only_root_has_mean",
        "the sum reaches every rank, but only rank 0 puts it into its gradients",
    ),
    wrong(
        "last_rank_left_out",
        "task2a",
        mistakes.gather_without_last_rank,
        "rank_left_out",
        "range(1, world_size - 1): the mean lacks the last rank",
    ),
    wrong(
        "biases_left_out",
        "task2a",
        mistakes.gather_without_biases,
        "tensors_left_out",
        "only names that end with weight are averaged",
    ),
    wrong(
        "classifier_left_out",
        "task2b",
        mistakes.reduce_without_classifier,
        "tensors_left_out",
        "model.bert is averaged, the classifier on top is not",
    ),
    wrong(
        "embeddings_left_out",
        "task2b",
        mistakes.reduce_without_embeddings,
        "tensors_left_out",
        "word embeddings are skipped, as if they were tied to an output layer",
    ),
    Variant(
        "averages_parameters_2a",
        "task2a",
        (
            replaced(script("task2a"), mistakes.parameters_by_gather),
            without("task2a", AVERAGE),
            after("task2a", SCHEDULE, AVERAGE),
        ),
        ("gradients",),
        "parameters_averaged",
        "parameters instead of gradients, after the update",
    ),
    wrong(
        "averages_parameters_2b",
        "task2b",
        mistakes.parameters_by_reduce,
        "parameters_averaged",
        "parameters instead of gradients, before the update",
    ),
    wrong(
        "divides_in_integers",
        "task2b",
        mistakes.reduce_whole_numbers,
        "rounded",
        "gradients are made whole numbers, and divided as such before the sum",
    ),
    wrong(
        "reduces_in_bfloat16",
        "task2b",
        mistakes.reduce_in_bfloat16,
        "rounded",
        "gradients travel and are summed in bfloat16",
    ),
    wrong(
        "times_one_over_n",
        "task2a",
        mistakes.gather_times_one_over_n,
        "zeroed",
        "1 // world_size is 0: every gradient is 0 times the reference",
    ),
    wrong(
        "uses_all_reduce_in_2a",
        "task2a",
        mistakes.reduce_well,
        "wrong_collective",
        "right gradients, by all_reduce instead of gather and scatter",
        "collectives",
    ),
    Variant(
        "uses_gather_in_2b",
        "task2b",
        (replaced(script("task2b"), mistakes.gather_well), with_torch("task2b")),
        ("collectives",),
        "wrong_collective",
        "right gradients, by gather and scatter instead of all_reduce",
    ),
    Variant(
        "uses_ddp_in_2a",
        "task2a",
        (
            replaced(script("task2a"), mistakes.nothing),
            before("task2a", OPTIMIZER, WRAP),
            before("task2a", IMPORT_CLIP, IMPORT_DDP),
        ),
        ("collectives",),
        "wrong_collective",
        "DistributedDataParallel does it, gather and scatter are not used",
    ),
    Variant(
        "no_ddp_in_3",
        "task3",
        (*unwrapped(), before("task3", CLIP, BY_HAND)),
        ("collectives",),
        "wrong_collective",
        "right gradients, by all_reduce by hand instead of DistributedDataParallel",
    ),
    Variant(
        "ddp_and_by_hand_in_3",
        "task3",
        (before("task3", CLIP, BY_HAND), before("task3", IMPORT_DDP, IMPORT_DIST)),
        ("collectives",),
        "wrong_collective",
        "DistributedDataParallel has averaged already, and all_reduce averages once more",
    ),
    Variant(
        "loss_times_world_size_in_3",
        "task3",
        (Edit(script("task3"), BACKWARD, BACKWARD.replace("loss", "(loss * world.size)")),),
        ("gradients",),
        "summed",
        "the loss is multiplied by the world size, to undo what DistributedDataParallel divides",
    ),
)
