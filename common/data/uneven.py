"""A rank's part of every batch, where the parts of the ranks differ in size."""

import math

from common.data.loader import StepBatches, TrainingBatches
from common.speed import Speed, ideal_parts
from common.uneven import first_sizes, most_held, split_batch

import torch
import torch.distributed as dist

STATE = ("steps", "sizes", "waited", "splits")
FIRST_STEPS = 5  # after which --split auto shares out for the first time


class UnevenBatches(TrainingBatches):
    """This rank's part of every batch of the training set, of which it may read more than others.

    Step k of all ranks together reads exactly the rows of one worker's step k: no row is read
    twice. The last batch of an epoch is split in proportion. A rank that gets none of its rows
    reads one of them with weight 0, and so takes part in the collectives.

    With --split auto the parts follow the workers' speeds. `splits` lists the parts from each step
    on, with the milliseconds that they follow from: per step, whatever its size, and per example.
    """

    def __init__(self, splits, tokenizer, args, world):
        self.features = splits.get("train", ())
        self.tokenizer = tokenizer
        self.world = world
        self.seed = args.seed
        self.accumulated = args.gradient_accumulation_steps
        self.sizes = first_sizes(args)
        self.total = sum(self.sizes) * self.accumulated
        self.auto = args.split == "auto" and world.size > 1
        self.every = args.rebalance_steps
        self.most = most_held(args)
        self.steps = 0
        self.speed = Speed()
        self.waited = []  # share of each step since the last split
        self.splits = [{"steps_before": 0, "sizes": self.sizes}]

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

    def end_step(self, seconds, examples):
        """With --split auto: share batches out again, if it is time; returns what to print.

        `seconds` are those of the step by phase. All ranks call it at once: their times are
        exchanged by one small all_reduce.
        """
        self.steps += 1
        if not self.auto:
            return ""
        if examples and self.steps > 1:  # the first step pays for memory and connections
            self.speed.add(examples, seconds["forward"] + seconds["backward"])
            self.waited.append(seconds["sync"] / sum(seconds.values()))
        if self.steps != FIRST_STEPS and self.steps % self.every:
            return ""
        measured = torch.zeros(3, self.world.size, dtype=torch.float64)
        waited = sum(self.waited) / max(1, len(self.waited))
        measured[:, self.world.rank] = torch.tensor([*self.speed.line(), waited])
        dist.all_reduce(measured)
        fixed, each, waited = measured.tolist()
        if not all(each):  # a worker had no examples yet
            return ""
        self.waited = []
        parts = ideal_parts(sum(self.sizes), list(zip(fixed, each, strict=True)))
        self.sizes = split_batch(sum(self.sizes), parts, self.most)
        fixed, each = ([round(1000 * seconds, 3) for seconds in row] for row in (fixed, each))
        self.splits.append(
            {
                "steps_before": self.steps,
                "sizes": self.sizes,
                "milliseconds_per_step": fixed,
                "milliseconds_per_example": each,
            }
        )
        costs = (f"{a:.1f} + {b:.2f} n" for a, b in zip(fixed, each, strict=True))
        return (
            f"parts from step {self.steps + 1} on: {','.join(map(str, self.sizes))} "
            f"(milliseconds for n examples: {', '.join(costs)}; "
            f"waiting before: {', '.join(f'{share:.0%}' for share in waited)})"
        )

    def state(self):
        """What a checkpoint keeps of the split in force, and of what it follows from."""
        if not self.auto:
            return {}
        return {name: getattr(self, name) for name in STATE} | {"speed": vars(self.speed)}

    def restore(self, state):
        """Go on from what `state` has returned."""
        if self.auto and state:
            for name in STATE:
                setattr(self, name, state[name])
            vars(self.speed).update(state["speed"])
