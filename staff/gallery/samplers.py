"""A rank's share of the rows by other means than DistributedSampler, with its signature."""

import torch


class ContiguousShards:
    """Right: every rank keeps one stretch of the file and shuffles it anew in every epoch."""

    def __init__(self, rows, size, rank, seed):
        self.count, self.rank, self.seed = -(-len(rows) // size), rank, seed
        self.rows, self.epoch = len(rows), 0

    def __len__(self):
        return self.count

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        order = torch.Generator().manual_seed(1000 * self.seed + self.epoch)
        start = self.rank * self.count
        for i in torch.randperm(self.count, generator=order).tolist():
            yield (start + i) % self.rows


class StridedPermutation:
    """Right: all ranks shuffle all rows alike, and each takes every size-th of them."""

    def __init__(self, rows, size, rank, seed):
        self.rows, self.size, self.rank, self.seed = len(rows), size, rank, seed
        self.epoch = 0

    def __len__(self):
        return self.rows // self.size

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        generator = torch.Generator()
        generator.manual_seed(self.seed + self.epoch)
        order = torch.randperm(self.rows, generator=generator).tolist()
        return iter(order[self.rank :: self.size][: len(self)])


class HalfOfTheRows:
    """Wrong: the step is twice the world size, so that every second row is never read."""

    def __init__(self, rows, size, rank, seed):
        self.mine = range(rank, len(rows) - len(rows) % size, 2 * size)
        self.seed, self.epoch = seed, 0

    def __len__(self):
        return len(self.mine)

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        generator = torch.Generator().manual_seed(self.seed + self.epoch)
        order = torch.randperm(len(self.mine), generator=generator)
        return iter([self.mine[i] for i in order.tolist()])
