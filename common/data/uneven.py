"""A rank's part of every batch, where the parts of the ranks differ in size."""

import math

from common.data.loader import StepBatches, TrainingBatches
from common.uneven import first_sizes, split_batch

import torch


class UnevenBatches(TrainingBatches):
    """This rank's part of every batch of the training set, of which it may read more than others.

    Step k of all ranks together reads exactly the rows of one worker's step k: no row is read
    twice. The last batch of an epoch is split in proportion. A rank that gets none of its rows
    reads one of them with weight 0, and so takes part in the collectives.
    """

    def __init__(self, splits, tokenizer, args, world):
        self.features = splits.get("train", ())
        self.tokenizer = tokenizer
        self.world = world
        self.seed = args.seed
        self.accumulated = args.gradient_accumulation_steps
        self.sizes = first_sizes(args)
        self.total = sum(self.sizes) * self.accumulated

    def __len__(self):
        """Optimizer steps per epoch."""
        return math.ceil(len(self.features) / self.total)

    def epoch(self, epoch):
        """Yield the StepBatches of every optimizer step."""
        generator = torch.Generator().manual_seed(self.seed + epoch)  # as DistributedSampler
        rows = torch.randperm(len(self.features), generator=generator).tolist()
        for at in range(0, len(rows), self.total):
            yield self.part_of(rows[at : at + self.total])

    def part_of(self, rows):
        """This rank's part of a step's rows."""
        parts = split_batch(len(rows), self.sizes)
        start, count = sum(parts[: self.world.rank]), parts[self.world.rank]
        own = [self.features[row] for row in rows[start : start + count] or rows[:1]]
        self.micro = self.sizes[self.world.rank]
        batches = self.split(own, self.tokenizer, self.world.device)
        if not count:
            batches = [(batch, 0.0) for batch, _ in batches]
        return StepBatches(batches, count, len(rows))
