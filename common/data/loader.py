"""A rank's share of the data, in batches that are ready for the model."""

import math
from dataclasses import dataclass

from common.data.features import LOCK_SECONDS, Features, load_features
from common.data.glue import GlueTask

import torch
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, DistributedSampler


@dataclass(frozen=True)
class Data:
    """What one rank trains and evaluates on.

    `splits` are whole and equal on every rank; `batches` is this rank's share of the training set.
    `total_steps` is the number of optimizer steps of the run: --max_steps, or the epochs' worth.
    """

    glue_task: GlueTask
    tokenizer: object
    splits: dict[str, Features]
    batches: "TrainingBatches"
    total_steps: int
    eval_batch_size: int


def load_data(args, glue_task, tokenizer, world, kind):
    """The Data of a run; raises UserError for what is wrong with the files.

    `kind` is the class of its batches.
    """
    splits = load_splits(args, glue_task, tokenizer)
    batches = kind(splits, tokenizer, args, world)
    total, size = steps_of_run(args, batches), args.per_gpu_eval_batch_size
    return Data(glue_task, tokenizer, splits, batches, total, size)


def steps_of_run(args, batches):
    """The optimizer steps of a run: --max_steps, or the epochs' worth; 0 without a training set."""
    if args.max_steps > 0 and len(batches):
        return args.max_steps
    return math.ceil(args.num_train_epochs * len(batches))


def load_splits(args, glue_task, tokenizer):
    """Split -> Features: `train` with --do_train, the dev set (two for MNLI) with --do_eval."""
    splits = ["train"] * args.do_train + list(glue_task.dev_splits) * args.do_eval
    return {
        split: load_features(
            glue_task,
            args.data_dir,
            split,
            tokenizer,
            args.max_seq_length,
            overwrite=args.overwrite_cache,
            lock_seconds=min(LOCK_SECONDS, args.timeout / 6),  # others wait for this rank meanwhile
        )
        for split in splits
    }


class StepBatches(list):
    """What one worker reads for an update: [(batch, its share of the worker's examples), ...].

    `examples` is the number of this worker's examples, `total` that of all workers' together.
    """

    def __init__(self, batches, examples, total):
        super().__init__(batches)
        self.examples = examples
        self.total = total


class EqualParts:
    """What the loop asks of batches whose parts may follow the workers' speeds: these do not."""

    def end_step(self, seconds, examples):
        """Take a step's times into account; returns what to print."""
        del seconds, examples
        return ""

    def state(self):
        """What this rank's checkpoint keeps of the split."""
        return {}

    def restore(self, state):
        """Go on from what `state` has returned."""


class TrainingBatches(EqualParts):
    """This rank's share of the training set: `epoch(n)` goes through it once, in a new order.

    DistributedSampler shuffles with a seed that all ranks share and deals the rows out in turn,
    so that in every step the ranks together see what one worker with the total batch would see.
    Where the rows do not divide by the world size it deals a few twice: RTE's 2,490 become 2,492.
    """

    def __init__(self, splits, tokenizer, args, world):
        features = splits.get("train", ())
        # SOLUTION(task1): deal the rows to the ranks with a DistributedSampler seeded by --seed
        self.sampler = DistributedSampler(features, world.size, world.rank, seed=args.seed)
        self.micro = args.per_gpu_train_batch_size
        self.loader = DataLoader(
            features,
            batch_size=self.micro * args.gradient_accumulation_steps,
            sampler=self.sampler,
            collate_fn=lambda rows: StepBatches(
                self.split(rows, tokenizer, world.device), len(rows), len(rows) * world.size
            ),
        )

    def __len__(self):
        """Optimizer steps per epoch."""
        return len(self.loader)

    def epoch(self, epoch):
        """Yield the StepBatches of every optimizer step."""
        # SOLUTION(task1): shuffle differently in every epoch
        self.sampler.set_epoch(epoch)  # else every epoch has the order of the first
        return iter(self.loader)

    def split(self, rows, tokenizer, device):
        """A step's rows as micro-batches, each with its share of them."""
        parts = self.parts(rows)
        return [(self.collate(part, tokenizer, device), len(part) / len(rows)) for part in parts]

    def parts(self, rows):
        """The rows of each micro-batch: one, unless --gradient_accumulation_steps is more."""
        return [rows[at : at + self.micro] for at in range(0, len(rows), self.micro)]

    def collate(self, rows, tokenizer, device):
        """The batch of some rows, on the device."""
        return collate(rows, tokenizer, device)


def collate(rows, tokenizer, device):
    """Stack rows into a batch, padded to its longest: (examples, tokens) int64, labels (examples).

    On a GPU this is where the batch is copied to the device.
    """
    padding = {"input_ids": tokenizer.pad_token_id, "token_type_ids": tokenizer.pad_token_type_id}
    batch = {
        key: pad_sequence([row[key] for row in rows], True, padding[key])
        for key in padding
        if key in rows[0]
    }
    ones = [torch.ones_like(row["input_ids"]) for row in rows]
    batch["attention_mask"] = pad_sequence(ones, True, 0)
    batch["labels"] = torch.stack([row["labels"] for row in rows])
    return {key: tensor.to(device) for key, tensor in batch.items()}
