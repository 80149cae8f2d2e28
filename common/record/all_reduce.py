"""How long a bare all_reduce takes, to compare a run's synchronization with."""

import statistics
import time

import torch
import torch.distributed as dist

TIMES = 3  # after one that is discarded


def time_all_reduce(world, size):
    """Median seconds of an all_reduce of `size` bytes on this rank; None for a single worker."""
    if world.size == 1:
        return None
    flat = torch.zeros(size // 4, device=world.device)
    seconds = []
    for _ in range(1 + TIMES):
        dist.barrier()
        start = time.perf_counter()
        dist.all_reduce(flat)
        if world.device.type == "cuda":
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds[1:])
