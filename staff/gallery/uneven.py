"""Submissions of task 5, right and wrong: weights of unequal parts of a batch, and the parts."""

from . import averages_uneven as averages
from .lines import (
    BACKWARD,
    CLIP,
    FIRST_LOSSES,
    IMPORT_CLIP,
    IMPORT_DDP,
    OPTIMIZER,
    WRAP,
    before,
    without,
)
from .variants import Edit, Variant, replaced, script

TASK = "task5"
AVERAGE = "            average_gradients(model, batches.examples)\n"
BATCHES = "common/data/uneven.py"
START = "        start, count = sum(parts[: self.world.rank]), parts[self.world.rank]\n"
SCALED = """\
                loss = loss * world.size * batches.examples / batches.total
"""
HOOK = """\
    def weighted(_, bucket):
        share = torch.tensor([record.share])
        buffer = bucket.buffer().mul_(share)
        done = dist.all_reduce(buffer, async_op=True).get_future()
        return done.then(lambda sums: sums.value()[0])

    model.register_comm_hook(None, weighted)
"""
NOTE_SHARE = "            record.share = batches.examples / batches.total\n"
ZERO = "            optimizer.zero_grad()\n"
OWN_STEPS = """\
        own = rows[self.world.rank :: self.world.size]
        micro = self.sizes[self.world.rank]
        for at in range(0, len(own), micro):
            mine = [self.features[row] for row in own[at : at + micro]]
            self.micro = micro
            batches = self.split(mine, self.tokenizer, self.world.device)
            yield StepBatches(batches, len(mine), self.total)
"""
LOOP = """\
        for at in range(0, len(rows), self.total):
            yield self.part_of(rows[at : at + self.total])
"""


def wrapped():
    """Task 5 with DistributedDataParallel, which weights nothing."""
    return (
        without(TASK, AVERAGE),
        before(TASK, OPTIMIZER, WRAP),
        before(TASK, IMPORT_CLIP, IMPORT_DDP),
    )


def averaging(name, code, note, cause="", check="gradients"):
    """A variant with our function `code` for average_gradients."""
    fails = (check,) if cause else ()
    return Variant(name, TASK, (replaced(script(TASK), code),), fails, cause, note)


def in_loader(name, old, new, cause, note, check="data"):
    """A variant whose parts of a batch are others."""
    return Variant(name, TASK, (Edit(BATCHES, old, new),), (check,), cause, note)


UNEVEN_RIGHT = (
    Variant("solution_5", TASK, note="this repository's own solution"),
    averaging(
        "counts_sent_apart",
        averages.counts_sent_apart,
        "an all_reduce of the counts, then one of every tensor, scaled by n/N before",
    ),
    averaging(
        "weighted_reduce_scatter",
        averages.reduced_and_gathered,
        "as FSDP does it: reduce_scatter of the weighted gradients, then all_gather",
    ),
    Variant(
        "ddp_with_scaled_loss",
        TASK,
        (*wrapped(), Edit(script(TASK), BACKWARD, SCALED + BACKWARD)),
        note="DistributedDataParallel, with the loss scaled by W n/N",
    ),
    Variant(
        "ddp_with_weighting_hook",
        TASK,
        (
            *wrapped(),
            Edit(script(TASK), "import torch.dist", "import torch\nimport torch.dist"),
            Edit(script(TASK), WRAP, WRAP + HOOK),
            Edit(script(TASK), ZERO, ZERO + NOTE_SHARE),
        ),
        note="DistributedDataParallel, with a communication hook that weights by n/N",
    ),
)
UNEVEN_WRONG = (
    averaging(
        "mean_of_means",
        averages.mean_of_means,
        "2(b)'s average: the mean of the workers' means",
        "mean_of_means",
    ),
    Variant(
        "ddp_uncorrected",
        TASK,
        wrapped(),
        ("gradients",),
        "mean_of_means",
        "DistributedDataParallel as in task 3: the mean of the workers' means",
    ),
    averaging(
        "as_hetseq",
        averages.as_hetseq,
        "HetSeq's rule: the mean over workers, times W/N, which is right for sums of losses",
        "mean_of_means",
    ),
    averaging(
        "weighted_never_divided",
        averages.never_divided,
        "multiplied by the examples and summed, but not divided",
        "wrong_weights",
    ),
    averaging(
        "weighted_divided_by_workers",
        averages.divided_by_workers,
        "multiplied by the examples, summed, and divided by the number of workers",
        "wrong_weights",
    ),
    averaging(
        "weighted_divided_by_own",
        averages.divided_by_own_examples,
        "divided by this worker's examples times the number of workers",
        "mixed",
    ),
    averaging(
        "weights_of_full_batch",
        averages.weights_of_the_first_batch,
        "weights of the parts asked for, also in the last batch, which is smaller",
        "weights_of_full_batch",
    ),
    averaging(
        "gradients_of_rank_0",
        averages.copied_from_rank_0,
        "every rank takes over rank 0's gradients",
        "rank_left_out",
    ),
    Variant(
        "clipped_before_weighting",
        TASK,
        (without(TASK, CLIP), before(TASK, AVERAGE, CLIP)),
        ("clipping",),
        "clipped_before_average",
        "every rank clips its own gradients, then they are weighted and summed",
    ),
    Variant(
        "prints_mean_of_means",
        TASK,
        (
            Edit(
                FIRST_LOSSES,
                "((loss * n, n) for loss, n in shares)",
                "((loss, 1) for loss, n in shares)",
            ),
            Edit(FIRST_LOSSES, " (rank 0's share: {own:.6f})", ""),
        ),
        ("printed",),
        "not_printed",
        "prints the mean of the workers' mean losses, which is not that of the batch",
    ),
    in_loader(
        "parts_overlap",
        START,
        START.replace("sum(parts[: self.world.rank])", "self.world.rank * min(parts)"),
        "rows_shared",
        "a worker's part begins where the smallest parts before it would end",
    ),
    in_loader(
        "parts_lose_rows",
        START,
        START + "        count = max(1, count - 2 * (self.world.rank == 0))\n",
        "rows_missing",
        "rank 0 leaves out the last two rows of its part of every batch",
    ),
    in_loader(
        "equal_parts_whatever_is_asked",
        "        parts = split_batch(len(rows), self.sizes)\n",
        "        parts = split_batch(len(rows), [1] * self.world.size)\n",
        "parts_not_kept",
        "right gradients of equal parts: --batch_sizes only sets the total",
        check="batch",
    ),
    in_loader(
        "own_number_of_steps",
        LOOP,
        OWN_STEPS,
        "evaluated_alone",
        "equal shares in unequal batches: whoever has the largest batch evaluates first, and alone",
        check="runs",
    ),
)
