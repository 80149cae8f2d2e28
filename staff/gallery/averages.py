"""Right ways to average gradients, each to stand in for a solution's `average_gradients`."""

from common.gradients import SLICE, flat_gradients

import torch
import torch.distributed as dist


def gather_per_tensor(model, world):
    for p in model.parameters():
        if p.grad is None:
            continue
        copies = None
        if world.rank == 0:
            copies = [torch.zeros_like(p.grad) for _ in range(world.size)]
        dist.gather(p.grad, copies, dst=0)
        if world.rank == 0:
            copies = [torch.stack(copies).mean(0)] * world.size
        dist.scatter(p.grad, copies, src=0)


def gather_flat(model, world):
    grads = [p.grad for p in model.parameters() if p.grad is not None]
    vector = torch.cat([grad.flatten() for grad in grads])
    matrix = vector.new_zeros(world.size, len(vector)) if world.rank == 0 else None
    dist.gather(vector, list(matrix) if world.rank == 0 else None)
    mean = matrix.mean(0) if world.rank == 0 else None
    dist.scatter(vector, [mean] * world.size if world.rank == 0 else None)
    for grad, piece in zip(grads, vector.split([grad.numel() for grad in grads]), strict=True):
        grad.copy_(piece.view_as(grad))


def gather_to_last_rank(model, world):
    root = world.size - 1
    for bucket in flat_gradients(model).split(SLICE):
        lists = [torch.empty_like(bucket) for _ in range(world.size)]
        dist.gather(bucket, lists if world.rank == root else None, dst=root)
        mean = sum(lists) / world.size
        dist.scatter(bucket, [mean] * world.size if world.rank == root else None, src=root)


def gather_divided_first(model, world):
    for bucket in flat_gradients(model).split(2**16):
        bucket /= world.size
        parts = [torch.empty_like(bucket) for _ in range(world.size)] if world.rank == 0 else None
        dist.gather(bucket, parts, dst=0)
        if world.rank == 0:
            parts = [torch.stack(parts).sum(0).clone() for _ in parts]
        dist.scatter(bucket, parts, src=0)


def gather_asynchronous(model, world):
    grads = [p.grad for p in model.parameters() if p.grad is not None]
    root = world.rank == 0
    received = [[torch.empty_like(g) for _ in range(world.size)] if root else None for g in grads]
    works = [dist.gather(g, r, async_op=True) for g, r in zip(grads, received, strict=True)]
    for work in works:
        work.wait()
    means = [[sum(r) / world.size] * world.size if root else None for r in received]
    works = [dist.scatter(g, m, async_op=True) for g, m in zip(grads, means, strict=True)]
    for work in works:
        work.wait()


def reduce_per_tensor(model, world):
    for name, p in model.named_parameters():
        if p.grad is not None:
            assert p.grad.is_contiguous(), name
            dist.all_reduce(p.grad)
            p.grad.div_(world.size)


def reduce_flat(model, world):
    grads = [p.grad for p in model.parameters() if p.grad is not None]
    flat = torch.nn.utils.parameters_to_vector(grads)
    dist.all_reduce(flat, op=dist.ReduceOp.SUM)
    torch.nn.utils.vector_to_parameters(flat / world.size, grads)


def reduce_small_buckets(model, world):
    for bucket in flat_gradients(model).split(12_500):
        total = bucket.clone()
        dist.all_reduce(total)
        bucket.copy_(total).mul_(1 / world.size)


def reduce_asynchronous(model, world):
    works = [
        (p, dist.all_reduce(p.grad, async_op=True))
        for p in reversed(list(model.parameters()))
        if p.grad is not None
    ]
    for p, work in works:
        work.wait()
        p.grad /= world.size


def reduce_divided_first(model, world):
    for bucket in flat_gradients(model).split(2**20):
        bucket /= world.size
        dist.all_reduce(bucket)


def reduce_with_avg(model, _):
    for bucket in flat_gradients(model).split(2**20):
        dist.all_reduce(bucket, op=dist.ReduceOp.AVG)


def reduce_in_double(model, world):
    for p in filter(lambda p: p.grad is not None, model.parameters()):
        exact = p.grad.double()
        dist.all_reduce(exact)
        p.grad = (exact / world.size).float()


def reduce_scatter_all_gather(model, world):
    for bucket in flat_gradients(model).split(2**20):
        padded = bucket.new_zeros(-(-bucket.numel() // world.size) * world.size)
        padded[: bucket.numel()] = bucket
        part = padded.new_empty(padded.numel() // world.size)
        dist.reduce_scatter_tensor(part, padded)
        part /= world.size
        dist.all_gather_into_tensor(padded, part)
        bucket.copy_(padded[: bucket.numel()])
