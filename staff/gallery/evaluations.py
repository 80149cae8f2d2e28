"""Ways to evaluate, each to stand in for `common.models.evaluate.evaluate`."""

from common.data.glue import score
from common.models.evaluate import predict

import torch
import torch.distributed as dist


@torch.no_grad()
def on_own_shard(model, data, world):
    """Wrong: every rank scores its own rows, and rank 0 prints what it has."""
    model = getattr(model, "module", model).eval()
    features = data.splits["dev"]
    mine = range(world.rank, len(features), world.size)
    predictions = predict(model, data, features, mine)
    model.train()
    return score(data.glue_task, predictions, [features[row]["labels"].item() for row in mine])


@torch.no_grad()
def on_the_first_half(model, data, _):
    """Wrong: the loop ends at half of the rows."""
    model.eval()
    features, size = data.splits["dev"], data.eval_batch_size
    right, seen = 0, 0
    while seen < len(features) // 2:
        rows = range(seen, min(seen + size, len(features)))
        for row, guess in zip(rows, predict(model, data, features, rows), strict=True):
            right += guess == features[row]["labels"].item()
        seen += len(rows)
    model.train()
    return {"acc": right / seen}


@torch.no_grad()
def by_rank_0_alone(model, data, world):
    """Right: rank 0 predicts every row, and the others go on to wait for it."""
    if world.rank != 0:
        return {}
    model = getattr(model, "module", model)
    model.eval()
    features = data.splits["dev"]
    guesses = predict(model, data, features, range(len(features)))
    labels = [features[row]["labels"].item() for row in range(len(features))]
    model.train()
    return score(data.glue_task, guesses, labels)


@torch.no_grad()
def mean_of_shards(model, data, world):
    """Wrong: the mean of the ranks' accuracies, of shards of different sizes."""
    model = getattr(model, "module", model).eval()
    features = data.splits["dev"]
    mine = range(world.rank, len(features), world.size)
    guesses = predict(model, data, features, mine)
    model.train()
    right = [
        features[row]["labels"].item() == guess for row, guess in zip(mine, guesses, strict=True)
    ]
    accuracy = torch.tensor(sum(right) / len(right))
    dist.all_reduce(accuracy)
    return {"acc": accuracy.item() / world.size}


@torch.no_grad()
def counts_of_shards(model, data, world):
    """Right: the ranks' numbers of right guesses and of rows are added up."""
    model = getattr(model, "module", model).eval()
    features = data.splits["dev"]
    mine = range(world.rank, len(features), world.size)
    guesses = predict(model, data, features, mine)
    model.train()
    right = [
        features[row]["labels"].item() == guess for row, guess in zip(mine, guesses, strict=True)
    ]
    counts = torch.tensor([sum(right), len(right)])
    dist.all_reduce(counts)
    return {"acc": (counts[0] / counts[1]).item()}


@torch.no_grad()
def padded_shards(model, data, world):
    """Wrong: DistributedSampler fills up the last shards with the first rows, scored twice."""
    model = getattr(model, "module", model).eval()
    features = data.splits["dev"]
    share = -(-len(features) // world.size)
    mine = [(world.rank + i * world.size) % len(features) for i in range(share)]
    parts = [None] * world.size
    labels = [features[row]["labels"].item() for row in mine]
    dist.all_gather_object(parts, (predict(model, data, features, mine), labels))
    model.train()
    guesses = [guess for part, _ in parts for guess in part]
    return score(data.glue_task, guesses, [label for _, part in parts for label in part])


@torch.no_grad()
def padded_shards_cut(model, data, world):
    """Right: the same, but rows that filled up the shards are cut off before scoring."""
    model = getattr(model, "module", model).eval()
    features = data.splits["dev"]
    share = -(-len(features) // world.size)
    mine = [(world.rank + i * world.size) % len(features) for i in range(share)]
    parts = [None] * world.size
    labels = [features[row]["labels"].item() for row in mine]
    dist.all_gather_object(
        parts, list(zip(predict(model, data, features, mine), labels, strict=True))
    )
    model.train()
    pairs = [pair for place in zip(*parts, strict=True) for pair in place][: len(features)]
    return score(data.glue_task, [guess for guess, _ in pairs], [label for _, label in pairs])


@torch.no_grad()
def on_training_rows(model, data, _):
    """Wrong: the training set is evaluated."""
    guesses = predict(model.eval(), data, data.splits["train"], range(len(data.splits["train"])))
    model.train()
    return score(data.glue_task, guesses, data.splits["train"].tensors["labels"].tolist())


@torch.no_grad()
def on_some_training_rows(model, data, _):
    """Wrong: the first rows of the training set, as many as the dev set has."""
    rows = range(len(data.splits["dev"]))
    guesses = predict(model.eval(), data, data.splits["train"], rows)
    model.train()
    return score(
        data.glue_task, guesses, data.splits["train"].tensors["labels"][: len(rows)].tolist()
    )


@torch.no_grad()
def on_both_sets(model, data, _):
    """Wrong: all rows that there are, as one set."""
    model.eval()
    guesses, labels = [], []
    for features in data.splits.values():
        guesses += predict(model, data, features, range(len(features)))
        labels += features.tensors["labels"].tolist()
    model.train()
    return score(data.glue_task, guesses, labels)


@torch.no_grad()
def on_both_sets_apart(model, data, _):
    """Right: the dev set's accuracy, and beside it that of the training set."""
    model.eval()
    scores = {}
    for split, features in data.splits.items():
        guesses = predict(model, data, features, range(len(features)))
        found = score(data.glue_task, guesses, features.tensors["labels"].tolist())
        scores |= {f"{split}_{name}": value for name, value in found.items()}
    model.train()
    return scores
