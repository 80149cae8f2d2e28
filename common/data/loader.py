"""A rank's share of the data, in batches that are ready for the model."""

from common.data.features import load_features

import torch
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, DistributedSampler


def load_splits(args, task, tokenizer):
    """Split -> Features: `train` with --do_train, the dev set (two for MNLI) with --do_eval."""
    splits = ["train"] * args.do_train + list(task.dev_splits) * args.do_eval
    return {
        split: load_features(
            task,
            args.data_dir,
            split,
            tokenizer,
            args.max_seq_length,
            overwrite=args.overwrite_cache,
        )
        for split in splits
    }


class TrainingBatches:
    """This rank's share of the training set: `epoch(n)` goes through it once, in a new order.

    DistributedSampler shuffles with a seed that all ranks share and deals the rows out in turn,
    so that step by step the ranks together see what one worker with the total batch would see.
    Where the rows do not divide by the world size it deals a few twice: RTE's 2,490 become 2,492.
    """

    def __init__(self, splits, tokenizer, args, world):
        features = splits.get("train", ())
        # SOLUTION(task1): deal the rows to the ranks: a DistributedSampler with --seed
        self.sampler = DistributedSampler(features, world.size, world.rank, seed=args.seed)
        self.micro = args.per_gpu_train_batch_size
        self.loader = DataLoader(
            features,
            batch_size=self.micro * args.gradient_accumulation_steps,
            sampler=self.sampler,
            collate_fn=lambda rows: self.split(rows, tokenizer, world.device),
        )

    def __len__(self):
        """Optimizer steps per epoch."""
        return len(self.loader)

    def epoch(self, epoch):
        """Yield, for each optimizer step, its list of (batch, share of the step's examples)."""
        # SOLUTION(task1): shuffle anew for this epoch
        self.sampler.set_epoch(epoch)  # else every epoch has the order of the first
        return iter(self.loader)

    def split(self, rows, tokenizer, device):
        """A step's rows as micro-batches: one, unless --gradient_accumulation_steps is more."""
        parts = [rows[at : at + self.micro] for at in range(0, len(rows), self.micro)]
        return [(collate(part, tokenizer, device), len(part) / len(rows)) for part in parts]


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
