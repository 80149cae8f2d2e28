"""Right and wrong gathers and scatters in pairs, each for `average_gradients`."""

import torch
import torch.distributed as dist


def first_copy_only(model, world):
    for p in model.parameters():
        copies = [torch.empty_like(p) for _ in range(world.size)] if world.rank == 0 else None
        dist.gather(p.grad, copies)
        if world.rank == 0:
            copies[0] = torch.stack(copies).mean(0)
        dist.scatter(p.grad, copies)


def every_copy(model, world):
    for p in model.parameters():
        copies = [torch.empty_like(p) for _ in range(world.size)] if world.rank == 0 else None
        dist.gather(p.grad, copies)
        if world.rank == 0:
            copies[:] = [torch.stack(copies).mean(0)] * world.size
        dist.scatter(p.grad, copies)


def aliased(model, world):
    for p in model.parameters():
        copies = [torch.empty_like(p)] * world.size if world.rank == 0 else None
        dist.gather(p.grad, copies)
        mean = sum(copies) / world.size if world.rank == 0 else None
        dist.scatter(p.grad, [mean] * world.size if world.rank == 0 else None)


def views_of_one(model, world):
    for p in model.parameters():
        every = p.new_empty(world.size, *p.shape) if world.rank == 0 else None
        dist.gather(p.grad, list(every.unbind()) if world.rank == 0 else None)
        mean = every.mean(0) if world.rank == 0 else None
        dist.scatter(p.grad, [mean] * world.size if world.rank == 0 else None)


def root_twice(model, world):
    for p in model.parameters():
        copies = [torch.empty_like(p) for _ in range(world.size)] if world.rank == 0 else None
        dist.gather(p.grad, copies)
        if world.rank == 0:
            total = copies[0]
            for one in copies:
                total += one
            copies = [total / world.size] * world.size
        dist.scatter(p.grad, copies)


def from_roots_own(model, world):
    for p in model.parameters():
        copies = [torch.empty_like(p) for _ in range(world.size)] if world.rank == 0 else None
        dist.gather(p.grad, copies)
        if world.rank == 0:
            for one in copies[1:]:
                p.grad += one
            p.grad /= world.size
        dist.scatter(p.grad, [p.grad] * world.size if world.rank == 0 else None)


def without_root(model, world):
    for p in model.parameters():
        copies = [torch.empty_like(p) for _ in range(world.size)] if world.rank == 0 else None
        dist.gather(p.grad, copies)
        if world.rank == 0:
            total = torch.zeros_like(p)
            for rank in range(1, world.size):
                total += copies[rank]
            copies = [total / world.size] * world.size
        dist.scatter(p.grad, copies)


def from_zeros(model, world):
    for p in model.parameters():
        copies = [torch.empty_like(p) for _ in range(world.size)] if world.rank == 0 else None
        dist.gather(p.grad, copies)
        if world.rank == 0:
            total = torch.zeros_like(p)
            for rank in reversed(range(world.size)):
                total += copies[rank]
            copies = [total / world.size] * world.size
        dist.scatter(p.grad, copies)


def sent_back_as_gathered(model, world):
    for p in model.parameters():
        copies = [torch.empty_like(p) for _ in range(world.size)] if world.rank == 0 else None
        dist.gather(p.grad, copies)
        if world.rank == 0:
            mean = torch.stack(copies).mean(0)
            p.grad.copy_(mean)
        dist.scatter(p.grad, copies)


def sent_back_overwritten(model, world):
    for p in model.parameters():
        copies = [torch.empty_like(p) for _ in range(world.size)] if world.rank == 0 else None
        dist.gather(p.grad, copies)
        if world.rank == 0:
            mean = torch.stack(copies).mean(0)
            for one in copies:
                one.copy_(mean)
        dist.scatter(p.grad, copies)


def in_half(model, world):
    for p in model.parameters():
        half = p.grad.half()
        copies = [torch.empty_like(half) for _ in range(world.size)] if world.rank == 0 else None
        dist.gather(half, copies)
        mean = sum(copies) / world.size if world.rank == 0 else None
        dist.scatter(half, [mean] * world.size if world.rank == 0 else None)
        p.grad.copy_(half)


def in_double(model, world):
    for p in model.parameters():
        exact = p.grad.double()
        copies = [torch.empty_like(exact) for _ in range(world.size)] if world.rank == 0 else None
        dist.gather(exact, copies)
        mean = sum(copies) / world.size if world.rank == 0 else None
        dist.scatter(exact, [mean] * world.size if world.rank == 0 else None)
        p.grad.copy_(exact)


def weighted_by_rank(model, world):
    for p in model.parameters():
        copies = [torch.empty_like(p) for _ in range(world.size)] if world.rank == 0 else None
        dist.gather(p.grad, copies)
        if world.rank == 0:
            weights = [rank + 1 for rank in range(world.size)]
            mean = sum(w * one for w, one in zip(weights, copies, strict=True)) / sum(weights)
            copies = [mean] * world.size
        dist.scatter(p.grad, copies)


def weighted_alike(model, world):
    for p in model.parameters():
        copies = [torch.empty_like(p) for _ in range(world.size)] if world.rank == 0 else None
        dist.gather(p.grad, copies)
        if world.rank == 0:
            weights = [1 / world.size] * world.size
            mean = sum(w * one for w, one in zip(weights, copies, strict=True))
            copies = [mean] * world.size
        dist.scatter(p.grad, copies)
