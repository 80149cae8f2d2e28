"""A rank's share of the rows by other means than DistributedSampler, with its signature."""

import torch
from torch.utils.data import DistributedSampler


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


class ShiftedShards:
    """Wrong: stretches of the file whose stride is a row less than their length."""

    def __init__(self, rows, size, rank, seed):
        self.count, self.seed, self.epoch = -(-len(rows) // size), seed, 0
        self.start = rank * (self.count - 1)

    def __len__(self):
        return self.count

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        order = torch.Generator().manual_seed(self.seed + self.epoch)
        return iter((self.start + torch.randperm(self.count, generator=order)).tolist())


class HalfShiftedShards:
    """Wrong: stretches of the file that begin in the middle of the one before."""

    def __init__(self, rows, size, rank, seed):
        self.count, self.seed, self.epoch = -(-len(rows) // size), seed, 0
        self.start = rank * (self.count // 2)

    def __len__(self):
        return self.count

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        order = torch.Generator().manual_seed(self.seed + self.epoch)
        return iter((self.start + torch.randperm(self.count, generator=order)).tolist())


class OverlappingLater(DistributedSampler):
    """Wrong: from the second epoch on every rank has a shuffle of its own."""

    def __init__(self, rows, size, rank, seed):
        super().__init__(rows, size, rank, seed=seed)

    def set_epoch(self, epoch):
        super().set_epoch(epoch + (1000 * self.rank if epoch > 1 else 0))


class SameLater(DistributedSampler):
    """Wrong: from the second epoch on every rank takes rank 0's share."""

    def __init__(self, rows, size, rank, seed):
        super().__init__(rows, size, rank, seed=seed)

    def set_epoch(self, epoch):
        super().set_epoch(epoch)
        self.rank = self.rank if epoch == 1 else 0
