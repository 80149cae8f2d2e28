"""Batches that all parts of a divided model read alike."""

from common.data.loader import TrainingBatches


class PipelinedBatches(TrainingBatches):
    """The batches of a replica of the model, each divided into --num_microbatches.

    All workers that hold a part of the replica go through the same rows. Where these do not divide
    by the number of micro-batches, the first ones have one row more.
    """

    def __init__(self, splits, tokenizer, args, world):
        super().__init__(splits, tokenizer, args, world.readers())
        self.number = getattr(args, "num_microbatches", 1)

    def parts(self, rows):
        """The rows of each micro-batch; with fewer rows than micro-batches, one in each."""
        return [part for batch in super().parts(rows) for part in divide(batch, self.number)]


def divide(rows, number):
    """Rows in `number` parts, or as many as there are rows; sizes differ by one at most."""
    number = min(number, len(rows))
    ends = [part * (len(rows) // number) + min(part, len(rows) % number) for part in range(number)]
    return [rows[at:end] for at, end in zip(ends, [*ends[1:], len(rows)], strict=True)]
