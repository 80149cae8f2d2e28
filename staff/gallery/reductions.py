"""Right and wrong reductions in pairs, each for `average_gradients`."""

from common.gradients import flat_gradients

import torch.distributed as dist


def reduced_to_root(model, world):
    flat = flat_gradients(model)
    dist.reduce(flat, 0)
    flat /= world.size
    dist.broadcast(flat, 0)


def gathered_by_all(model, world):
    flat = flat_gradients(model)
    copies = [flat.clone() for _ in range(world.size)]
    dist.all_gather(copies, flat)
    flat.copy_(sum(copies) / world.size)


def not_copied_back(model, world):
    for p in model.parameters():
        mean = p.grad.clone()
        dist.all_reduce(mean)
        mean /= world.size


def copied_back(model, world):
    for p in model.parameters():
        mean = p.grad.clone()
        dist.all_reduce(mean)
        p.grad = mean / world.size


def among_neighbors(model, world):
    pairs = [dist.new_group([rank, rank + 1]) for rank in range(0, world.size, 2)]
    flat = flat_gradients(model)
    dist.all_reduce(flat, group=pairs[world.rank // 2])
    flat /= 2


def in_a_new_group(model, world):
    group = dist.new_group(list(range(world.size)))
    flat = flat_gradients(model)
    dist.all_reduce(flat, group=group)
    flat /= dist.get_world_size(group)


def by_maximum(model, _):
    dist.all_reduce(flat_gradients(model), op=dist.ReduceOp.MAX)


def read_before_done(model, world):
    flat = flat_gradients(model)
    total = flat.clone()
    work = dist.all_reduce(total, async_op=True)
    flat.copy_(total / world.size)
    work.wait()


def read_when_done(model, world):
    flat = flat_gradients(model)
    total = flat.clone()
    work = dist.all_reduce(total, async_op=True)
    work.wait()
    flat.copy_(total / world.size)


def divided_by_rank(model, world):
    flat = flat_gradients(model)
    dist.all_reduce(flat)
    if world.rank == 0:
        flat /= world.size
    else:
        flat /= world.size - 1
