"""The dev-set metric of a model."""

from common.data.glue import score
from common.data.loader import collate

import torch
import torch.distributed as dist


@torch.no_grad()
def evaluate(model, task, splits, tokenizer, args, world):
    """The task's metrics on its dev sets: name -> value, the same on every rank.

    Each rank predicts every `world.size`-th row, with the plain model and not its
    DistributedDataParallel wrapper, whose ranks would have to go through equally many batches.
    The metric is taken over all rows: the mean of the shards' F1 is not F1.
    """
    model = getattr(model, "module", model).eval()
    scores = {}
    for split, features in splits.items():
        if split not in task.dev_splits:
            continue
        mine = [features[row] for row in range(world.rank, len(features), world.size)]
        size = args.per_gpu_eval_batch_size
        shards = [mine[at : at + size] for at in range(0, len(mine), size)]
        logits = [model(**collate(rows, tokenizer, world.device)).logits.float() for rows in shards]
        predictions = predict(torch.cat(logits) if logits else torch.empty(0, 1), task)
        parts = [None] * world.size
        dist.all_gather_object(parts, predictions)
        rows = [None] * len(features)
        for rank, part in enumerate(parts):
            rows[rank :: world.size] = part
        labels = [features[row]["labels"].item() for row in range(len(features))]
        prefix = split.removeprefix("dev").lstrip("_")
        for name, value in score(task, rows, labels).items():
            scores[f"{prefix}_{name}" if prefix else name] = value
    model.train()
    return scores


def predict(logits, task):
    """Class ids, or scores for a regression, as a list, from logits (rows, labels)."""
    return (logits.argmax(dim=1) if task.labels else logits.squeeze(1)).tolist()
