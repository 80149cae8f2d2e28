"""Wrong ways to average gradients, each to stand in for a solution's `average_gradients`."""

from common.gradients import SLICE, flat_gradients

import torch
import torch.distributed as dist


def todo(model, world):
    raise NotImplementedError("TODO(task2a): average the gradients")


def nothing(*_):
    pass


def gather_summed(model, world):
    for bucket in flat_gradients(model).split(SLICE):
        copies = [torch.empty_like(bucket) for _ in range(world.size)] if world.rank == 0 else None
        dist.gather(bucket, copies, dst=0)
        if world.rank == 0:
            copies = [torch.stack(copies).sum(0)] * world.size
        dist.scatter(bucket, copies, src=0)


def gather_divided_twice(model, world):
    for bucket in flat_gradients(model).split(SLICE):
        bucket /= world.size
        copies = [torch.empty_like(bucket) for _ in range(world.size)] if world.rank == 0 else None
        dist.gather(bucket, copies, dst=0)
        if world.rank == 0:
            copies = [torch.stack(copies).mean(0)] * world.size
        dist.scatter(bucket, copies, src=0)


def gather_without_scatter(model, world):
    for p in model.parameters():
        copies = [torch.empty_like(p.grad) for _ in range(world.size)] if world.rank == 0 else None
        dist.gather(p.grad, copies, dst=0)
        if world.rank == 0:
            p.grad = torch.stack(copies).mean(0)


def gather_without_last_rank(model, world):
    for bucket in flat_gradients(model).split(SLICE):
        copies = [torch.empty_like(bucket) for _ in range(world.size)] if world.rank == 0 else None
        dist.gather(bucket, copies, dst=0)
        if world.rank == 0:
            mean = copies[0].clone()
            for rank in range(1, world.size - 1):
                mean += copies[rank]
            copies = [mean / (world.size - 1)] * world.size
        dist.scatter(bucket, copies, src=0)


def gather_without_biases(model, world):
    for name, p in model.named_parameters():
        if name.endswith("weight"):
            copies = [torch.empty_like(p.grad) for _ in range(world.size)]
            dist.gather(p.grad, copies if world.rank == 0 else None)
            mean = torch.stack(copies).mean(0)
            dist.scatter(p.grad, [mean] * world.size if world.rank == 0 else None)


def gather_skipped_once(model, world):
    for number, p in enumerate(model.parameters()):
        copies = [torch.empty_like(p.grad) for _ in range(world.size)] if world.rank == 0 else None
        if number != 16 or world.rank != world.size - 1:
            dist.gather(p.grad, copies, dst=0)
        if world.rank == 0:
            copies = [torch.stack(copies).mean(0)] * world.size
        dist.scatter(p.grad, copies, src=0)


def gather_times_one_over_n(model, world):
    for bucket in flat_gradients(model).split(SLICE):
        copies = [torch.empty_like(bucket) for _ in range(world.size)] if world.rank == 0 else None
        dist.gather(bucket, copies, dst=0)
        if world.rank == 0:
            copies = [sum(copies) * (1 // world.size)] * world.size
        dist.scatter(bucket, copies, src=0)


def sleeping_on_rank_1(model, world):
    import time

    for bucket in flat_gradients(model).split(SLICE):
        if world.rank == 1:
            time.sleep(1_000_000)
        copies = [torch.empty_like(bucket) for _ in range(world.size)] if world.rank == 0 else None
        dist.gather(bucket, copies, dst=0)
        if world.rank == 0:
            copies = [torch.stack(copies).mean(0)] * world.size
        dist.scatter(bucket, copies, src=0)


def reduce_summed(model, _):
    for bucket in flat_gradients(model).split(2**20):
        dist.all_reduce(bucket, op=dist.ReduceOp.SUM)


def reduce_divided_twice(model, world):
    for bucket in flat_gradients(model).split(2**20):
        bucket /= world.size
        dist.all_reduce(bucket, op=dist.ReduceOp.AVG)


def reduce_on_rank_0_only(model, world):
    for p in model.parameters():
        total = p.grad.clone()
        dist.all_reduce(total)
        if world.rank == 0:
            p.grad = total / world.size


def reduce_without_classifier(model, world):
    for p in model.bert.parameters():
        dist.all_reduce(p.grad)
        p.grad /= world.size


def reduce_without_embeddings(model, world):
    tied = {id(p) for p in model.get_input_embeddings().parameters()}
    for p in model.parameters():
        if p.requires_grad and id(p) not in tied:
            dist.all_reduce(p.grad)
            p.grad /= world.size


def reduce_whole_numbers(model, world):
    for p in model.parameters():
        whole = (p.grad * 2**16).int() // world.size
        dist.all_reduce(whole)
        p.grad = whole.float() / 2**16


def reduce_in_bfloat16(model, world):
    for p in model.parameters():
        half = p.grad.bfloat16()
        dist.all_reduce(half)
        p.grad.copy_(half / world.size)


def parameters_by_gather(model, world):
    for p in model.parameters():
        copies = [torch.empty_like(p) for _ in range(world.size)] if world.rank == 0 else None
        dist.gather(p.data, copies, dst=0)
        if world.rank == 0:
            copies = [torch.stack(copies).mean(0)] * world.size
        dist.scatter(p.data, copies, src=0)


def parameters_by_reduce(model, world):
    for p in model.parameters():
        dist.all_reduce(p.data)
        p.data /= world.size


def gather_well(model, world):
    """The mean, as task 2(a) has it: wrong elsewhere."""
    for p in model.parameters():
        copies = [torch.empty_like(p.grad) for _ in range(world.size)] if world.rank == 0 else None
        dist.gather(p.grad, copies)
        mean = sum(copies) / world.size if world.rank == 0 else None
        dist.scatter(p.grad, [mean] * world.size if world.rank == 0 else None)


def reduce_well(model, world):
    """The mean, as task 2(b) has it: wrong elsewhere."""
    for p in model.parameters():
        dist.all_reduce(p.grad)
        p.grad /= world.size


def reduce_summed_later(model, world):
    for p in model.parameters():
        p.calls = getattr(p, "calls", 0) + 1
        dist.all_reduce(p.grad)
        if p.calls < 16:
            p.grad /= world.size


def gather_at_first(model, world):
    for p in model.parameters():
        p.calls = getattr(p, "calls", 0) + 1
        copies = [torch.empty_like(p.grad) for _ in range(world.size)] if world.rank == 0 else None
        dist.gather(p.grad, copies)
        received = torch.empty_like(p.grad)
        mean = sum(copies) / world.size if world.rank == 0 else None
        dist.scatter(received, [mean] * world.size if world.rank == 0 else None)
        if p.calls < 15:
            p.grad.copy_(received)


def reduce_at_first(model, world):
    for p in model.parameters():
        p.calls = getattr(p, "calls", 0) + 1
        total = p.grad.clone()
        dist.all_reduce(total)
        if p.calls < 16:
            p.grad = total / world.size


def reduce_without_biases_later(model, world):
    for name, p in model.named_parameters():
        p.calls = getattr(p, "calls", 0) + 1
        total = p.grad.clone()
        dist.all_reduce(total)
        if p.calls < 16 or not name.endswith("bias"):
            p.grad = total / world.size
