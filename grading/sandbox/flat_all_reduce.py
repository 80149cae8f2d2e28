"""Prints the median seconds of one flat all_reduce, the unit of others' synchronization.

Arguments: rank, port, number of workers, number of float32 elements.
"""

import statistics
import sys
import time

import torch
import torch.distributed as dist


def main(rank: int, port: int, workers: int, elements: int):
    """Time it on this rank, among that many workers."""
    address = f"tcp://127.0.0.1:{port}"
    dist.init_process_group("gloo", init_method=address, rank=rank, world_size=workers)
    buffer, seconds = torch.ones(elements), []
    for _ in range(12):
        dist.barrier()
        start = time.perf_counter()
        dist.all_reduce(buffer)
        seconds.append(time.perf_counter() - start)
    print(statistics.median(seconds[2:]))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
