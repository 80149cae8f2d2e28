"""Ways to evaluate, each to stand in for `common.models.evaluate.evaluate`."""

from common.data.glue import score
from common.data.loader import collate
from common.models.evaluate import predict

import torch


@torch.no_grad()
def on_own_shard(model, task, splits, tokenizer, args, world):
    """Wrong: every rank scores its own rows, and rank 0 prints what it has."""
    model = getattr(model, "module", model).eval()
    features, size = splits["dev"], args.per_gpu_eval_batch_size
    mine = [features[row] for row in range(world.rank, len(features), world.size)]
    batches = [collate(mine[i : i + size], tokenizer, "cpu") for i in range(0, len(mine), size)]
    logits = torch.cat([model(**batch).logits for batch in batches])
    model.train()
    return score(task, predict(logits, task), [row["labels"].item() for row in mine])


@torch.no_grad()
def on_the_first_half(model, task, splits, tokenizer, args, _):
    """Wrong: the loop ends at half of the rows."""
    model.eval()
    rows = [splits["dev"][row] for row in range(len(splits["dev"]))]
    right, seen = 0, 0
    while seen < len(rows) // 2:
        batch = collate(rows[seen : seen + args.per_gpu_eval_batch_size], tokenizer, "cpu")
        right += sum(
            guess == row["labels"].item()
            for guess, row in zip(predict(model(**batch).logits, task), rows[seen:], strict=False)
        )
        seen += len(batch["labels"])
    model.train()
    return {"acc": right / seen}


@torch.no_grad()
def by_rank_0_alone(model, task, splits, tokenizer, args, world):
    """Right: rank 0 predicts every row, and the others go on to wait for it."""
    if world.rank != 0:
        return {}
    model = getattr(model, "module", model)
    model.eval()
    guesses, labels = [], []
    for i in range(0, len(splits["dev"]), args.per_gpu_eval_batch_size):
        ids = range(i, min(i + args.per_gpu_eval_batch_size, len(splits["dev"])))
        batch = collate([splits["dev"][j] for j in ids], tokenizer, "cpu")
        guesses += predict(model(**batch).logits, task)
        labels += batch["labels"].tolist()
    model.train()
    return score(task, guesses, labels)
