"""Pairs about a rank's share of the rows: each wrong one with a right one like it."""

import torch

from .lines import LOADER, OPTIMIZER, SAMPLER, after, sampled_by
from .variants import Edit, Variant

DROP = "            sampler=self.sampler,\n"
DROPPED = Edit(LOADER, DROP, DROP + "            drop_last=True,\n")
SEED = "    __import__('torch').manual_seed(args.seed + world.rank)\n"


class Overlapping:
    """Wrong: a rank's stretch begins at rank * size instead of rank * count."""

    def __init__(self, rows, size, rank, seed):
        self.count, self.start, self.seed, self.rows = (
            -(-len(rows) // size),
            rank * size,
            seed,
            rows,
        )

    def __len__(self):
        return self.count

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        order = torch.Generator().manual_seed(self.seed + self.epoch)
        for i in torch.randperm(self.count, generator=order).tolist():
            yield (self.start + i) % len(self.rows)


class Stretches:
    """Right: all ranks shuffle all rows alike, and each takes one stretch of them."""

    def __init__(self, rows, size, rank, seed):
        self.count, self.rank, self.seed, self.rows = -(-len(rows) // size), rank, seed, rows

    def __len__(self):
        return self.count

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        generator = torch.Generator().manual_seed(self.seed + self.epoch)
        order = torch.randperm(len(self.rows), generator=generator).tolist() * 2
        return iter(order[self.rank * self.count : (self.rank + 1) * self.count])


class Uneven:
    """All ranks shuffle all rows alike, and each takes every size-th: some one row more."""

    def __init__(self, rows, size, rank, seed):
        self.rows, self.size, self.rank, self.seed = len(rows), size, rank, seed

    def __len__(self):
        return len(range(self.rank, self.rows, self.size))

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        generator = torch.Generator().manual_seed(self.seed + self.epoch)
        order = torch.randperm(self.rows, generator=generator).tolist()
        return iter(order[self.rank :: self.size])


class NewRowsEveryTime:
    """Wrong: every rank draws its rows from all of them, with replacement."""

    def __init__(self, rows, size, rank, seed):
        self.rows, self.count = len(rows), -(-len(rows) // size)
        self.seed = 100 * seed + rank

    def __len__(self):
        return self.count

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        generator = torch.Generator().manual_seed(self.seed + 1000 * self.epoch)
        return iter(torch.randint(self.rows, (self.count,), generator=generator).tolist())


def sampler(new):
    """The loader with another call of DistributedSampler."""
    return (Edit(LOADER, SAMPLER, new),)


WRONG = (
    Variant(
        "seeds_sampler_by_rank",
        "task2b",
        sampler(SAMPLER.replace("args.seed", "args.seed + world.rank")),
        ("data",),
        "rows_shared",
        "every rank shuffles with a seed of its own, so that shares overlap",
    ),
    Variant(
        "never_shuffles",
        "task3",
        sampler(SAMPLER.replace(")", ", shuffle=False)")),
        ("shuffle",),
        "not_reshuffled",
        "shuffle=False: every epoch is in the file's order",
    ),
    Variant(
        "stretches_overlap",
        "task2b",
        sampled_by(Overlapping),
        ("data",),
        "rows_shared",
        "stretches begin at rank * N, and overlap",
    ),
    Variant(
        "drops_last_batch_unevenly",
        "task2b",
        (*sampled_by(Uneven), DROPPED),
        ("runs",),
        "evaluated_alone",  # those with fewer batches do so first
        "some ranks have a row more, and thus a batch more with drop_last",
    ),
    Variant(
        "draws_with_replacement",
        "task2a",
        sampled_by(NewRowsEveryTime),
        ("data",),
        "rows_shared",
        "every rank draws its rows from all, with replacement",
    ),
    Variant(
        "sampler_for_four_workers",
        "task2b",
        sampler(SAMPLER.replace("world.size", "4")),
        ("workers",),
        "fixed_world_size",
        "the sampler deals four shares, whatever the number of workers is",
    ),
)
RIGHT = (
    Variant(
        "seeds_dropout_by_rank",
        "task2b",
        (after("task2b", OPTIMIZER, SEED),),
        note="torch is seeded by rank, for dropout; the sampler is not",
    ),
    Variant(
        "shuffles_with_another_seed",
        "task3",
        sampler(SAMPLER.replace("seed=args.seed", "seed=7, shuffle=True")),
        note="the sampler has a fixed seed, the same on all ranks",
    ),
    Variant(
        "stretches_of_a_permutation",
        "task2b",
        sampled_by(Stretches),
        note="each rank takes a stretch of one permutation",
    ),
    Variant(
        "keeps_last_batch_uneven",
        "task2b",
        sampled_by(Uneven),
        note="some ranks have a row more, and last batches of different sizes",
    ),
)
