"""Ways of weighing the micro-batches of a step, each to stand in for the solution's `weigh`."""

import torch
import torch.distributed as dist


def by_rows(batches, world):
    """The weights that the loader gives: each micro-batch's rows among this rank's."""


def by_own_words(batches, _):
    counts = [((batch["labels"] >= 0).sum(), len(batch["labels"])) for batch, _ in batches]
    counts = torch.tensor(counts, dtype=torch.float64)
    weights = (counts / counts.sum(0)).float()
    batches[:] = [(batch, weight) for (batch, _), weight in zip(batches, weights, strict=True)]


def without_world_size(batches, _):
    counts = [((batch["labels"] >= 0).sum(), len(batch["labels"])) for batch, _ in batches]
    counts = torch.tensor(counts, dtype=torch.float64)
    totals = counts.sum(0)
    dist.all_reduce(totals)
    weights = (counts / totals).float()
    batches[:] = [(batch, weight) for (batch, _), weight in zip(batches, weights, strict=True)]


def by_words_alone(batches, world):
    counts = torch.tensor([float((batch["labels"] >= 0).sum()) for batch, _ in batches])
    total = counts.sum()
    dist.all_reduce(total)
    weights = world.size * counts / total
    batches[:] = [(batch, weight) for (batch, _), weight in zip(batches, weights, strict=True)]


def without_pairs(batches, world):
    counts = torch.tensor([float((batch["labels"] >= 0).sum()) for batch, _ in batches])
    total = counts.sum()
    dist.all_reduce(total)
    weights = world.size * counts / total
    weights = torch.stack([weights, 0 * weights], dim=1)
    batches[:] = [(batch, weight) for (batch, _), weight in zip(batches, weights, strict=True)]


def gathered_counts(batches, world):
    """Right: each rank's counts are gathered, and added up there."""
    counts = [[float((batch["labels"] >= 0).sum()), len(batch["labels"])] for batch, _ in batches]
    of_ranks = [None] * world.size
    dist.all_gather_object(of_ranks, counts)
    totals = torch.tensor(of_ranks).flatten(0, 1).sum(0)
    for at, (batch, _) in enumerate(batches):
        batches[at] = batch, torch.tensor(counts[at]) / totals * world.size
