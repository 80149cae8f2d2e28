"""How long each way to average the gradients takes, against bare collectives on as many bytes.

Started like a task (see measurements.py), on any model; rank 0 writes sync_times.json. Every
method starts at a barrier and ends when the slowest rank has finished; the methods are interleaved.
"""

import json
import platform
import resource
import statistics
import sys
import time
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

import task2a.run_glue
import task2b.run_glue
from common.files import write_whole
from common.gradients import SLICE
from common.load import load
from common.models.optimizer import make_optimizer
from common.record.facts import machine_id, processor
from common.run import run
from common.workers.world import World

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

ROUNDS = 10  # of each way, after one that is discarded
PASSES = 5  # of forward and backward, after one that is discarded


def main(args: Namespace, world: World) -> None:
    """Time every way in turn; rank 0 writes and prints the seconds."""
    model, data = load(args, world)
    [(batch, _)] = next(data.batches.epoch(1))
    optimizer, _ = make_optimizer(model, args, 2)
    model(**batch).loss.backward()
    optimizer.step()
    task2a.run_glue.average_gradients(model, world)
    peaks = gather_values(peak_memory(), world)
    flat = torch.cat([p.grad.view(-1) for p in model.parameters() if p.grad is not None])
    ways = {
        "2(a)": lambda: task2a.run_glue.average_gradients(model, world),
        "2(b)": lambda: task2b.run_glue.average_gradients(model, world),
        "flat all_reduce": lambda: dist.all_reduce(flat),
        "flat gather+scatter": gather_scatter(flat, flat.numel(), world),
        "7 MiB gather+scatter": gather_scatter(flat, SLICE, world),
    }
    seconds = time_in_turn(ways, ROUNDS, world, lambda: renew_gradients(model))
    seconds.update(time_in_turn(backward_passes(model, batch), PASSES, world))
    if world.rank == 0:
        facts = {
            "machine": f"{platform.node()} ({processor()})",
            "machine_id": machine_id(),
            "bytes": flat.numel() * flat.element_size(),
            "seconds": seconds,
            "peak_memory": peaks,
        }
        folder = Path(args.output_dir)
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(folder / "sync_times.json", json.dumps(facts, indent=1) + "\n")
        for name, times in seconds.items():
            print(f"{name}: {statistics.median(times):.3f} s (median of {len(times)})")


def renew_gradients(model: torch.nn.Module) -> None:
    """Give every parameter a gradient outside of the flat buffer, as a backward pass does."""
    for p in model.parameters():
        p.grad = None if p.grad is None else p.grad.clone()


def gather_scatter(flat: torch.Tensor, size: int, world: World) -> Callable[[], None]:
    """A bare gather, mean and scatter of `flat`, `size` elements at a time, into kept buffers."""
    root = world.rank == 0
    kept = [torch.empty(min(size, flat.numel())) for _ in range(world.size)] if root else []

    def average() -> None:
        for part in flat.split(size):
            copies = [buffer[: part.numel()] for buffer in kept] or None
            dist.gather(part, copies, dst=0)
            if copies:
                for copy in copies[1:]:
                    copies[0].add_(copy)
                copies[0].div_(world.size)
                copies = copies[:1] * world.size
            dist.scatter(part, copies, src=0)

    return average


def backward_passes(model: torch.nn.Module, batch: dict) -> dict[str, Callable[[], None]]:
    """Forward and backward under task 3's wrapper, with and without its synchronization."""
    wrapped = DistributedDataParallel(model, static_graph=True)

    def synchronized() -> None:
        wrapped(**batch).loss.backward()

    def silent() -> None:
        model(**batch).loss.backward()

    return {"forward and backward, 3": synchronized, "forward and backward, alone": silent}


def time_in_turn(
    ways: dict[str, Callable[[], Any]],
    rounds: int,
    world: World,
    prepare: Callable[[], None] = lambda: None,
) -> dict[str, list[float]]:
    """Name -> seconds of each round of each way: the slowest rank's; `prepare` is not timed."""
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds + 1):
        for name, way in ways.items():
            prepare()
            dist.barrier()
            start = time.perf_counter()
            way()
            seconds[name].append(time.perf_counter() - start)
    return {
        name: [max(ranks) for ranks in zip(*gather_values(times, world), strict=True)][1:]
        for name, times in seconds.items()
    }


def gather_values(value: Any, world: World) -> list[Any]:
    """The value of every rank."""
    values = [None] * world.size
    dist.all_gather_object(values, value)
    return values


def peak_memory() -> int:
    """The most memory that this process has held, in bytes."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


if __name__ == "__main__":
    run(main, __file__)
