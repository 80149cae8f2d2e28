"""Check a cluster before training on it: which workers it has, how fast, and what is wrong.

    python -m cluster.hello --master_ip 10.10.1.1 --master_port 6585 --world_size 4 --local_rank R

Run it once per worker, like a training script (under torchrun or srun with no flags at all). It
joins the workers as training does. Rank 0 prints the report: every worker's host, interface and
versions; whether gather, scatter and all_reduce give correct results; latency and bandwidth between
ranks; and warnings. If the workers cannot connect, it says why within --timeout (default here: 60
seconds). The other flags of the training scripts are accepted, too, and compared between workers.
"""

import itertools
import socket
import statistics
import sys
import time
from argparse import Namespace
from collections.abc import Iterator
from typing import Any

from common.errors import UserError
from common.flags import Flag
from common.run import run
from common.workers.network import interface, route_to
from common.workers.world import World

import psutil
import torch
import torch.distributed as dist

DEFAULTS = [  # where they differ from training's
    Flag("data_dir", str, ".", "ignored here"),
    Flag("output_dir", str, ".", "ignored here"),
    Flag("model_name_or_path", str, "tiny", "ignored here"),
    Flag("task_name", str, "RTE", "ignored here"),
    Flag("do_eval", bool, True, "ignored here"),
    Flag("timeout", float, 60.0, "seconds to wait for other workers, in any collective", 1),
]
SIZES = (1, 1000, 1_000_003)  # numbers in the collectives that are checked
MESSAGE_BYTES = 8_000_000
BUCKET_BYTES = 25_000_000
ALL_PAIRS = 8  # with more workers, only rank 0's pairs are measured
SLOW_MBITS = 1000  # per second


def main(args: Namespace, world: World) -> None:
    """Check and measure everything; rank 0 prints the report."""
    say = print if world.rank == 0 else lambda *_: None
    say(f"hello: workers: {world.size}, backend: {world.backend}")
    reports = gather(world, (describe(args, world), warnings(args, world)))
    for line, _ in reports:
        say(line)
    for size in SIZES:
        check_collectives(world, size)
    dist.barrier()
    sizes = ", ".join(map(str, SIZES))
    say(f"gather, scatter and all_reduce of {sizes} numbers: correct on every rank")
    for line in measure_pairs(world):
        say(line)
    say(f"all_reduce of {BUCKET_BYTES / 1e6:g} MB: {time_all_reduce(world) * 1e3:.1f} ms")
    say("\n".join(warning for _, several in reports for warning in several) or "no warnings")


def gather(world: World, mine: Any) -> list[Any]:
    """What every rank holds as `mine`, by rank; a barrier, too."""
    values = [None] * world.size
    dist.all_gather_object(values, mine)
    return values


def describe(args: Namespace, world: World) -> str:
    """This worker's line of the report."""
    me, (address, nic) = world.members[world.rank], interface(args)
    return (
        f"rank {world.rank}: host {me['host']}, {address} on {nic}, python {me['python']}, "
        f"torch {torch.__version__}, threads: {torch.get_num_threads()}, GPUs: {me['gpus']}"
    )


def warnings(args: Namespace, world: World) -> list[str]:
    """Warnings about this worker: what may cause trouble later."""
    host, (address, nic) = socket.gethostname(), interface(args)
    _, route = route_to(args.master_ip or "127.0.0.1")
    speed = psutil.net_if_stats()[nic].speed  # Mbit/s, 0 if unknown
    several = len({member["address"] for member in world.members}) > 1
    try:
        own = socket.gethostbyname(host)
    except OSError:
        own = "127.x or nothing"
    found = {
        f"its host name resolves to {own} (see /etc/hosts): fine for this kit, but other "
        f"gloo programs need GLOO_SOCKET_IFNAME={nic}": several and own.startswith("127."),
        f"GLOO_SOCKET_IFNAME is {nic} ({address}), but the route to the master is through "
        f"{route}: unset it, unless this is intended": nic != route,
        f"{nic} is slow ({speed} Mbit/s): if the machines share a faster network, pass rank 0's "
        "address in it as --master_ip": 0 < speed < SLOW_MBITS,
    }
    return [f"warning: rank {world.rank} ({host}): {text}" for text, so in found.items() if so]


def numbers(rank: int, size: int, world: World) -> torch.Tensor:
    """A rank's own whole numbers, small enough for exact sums in float32."""
    return torch.arange(size, device=world.device).remainder(100).add(100 * rank).float()


def check_collectives(world: World, size: int) -> None:
    """Raise UserError where gather, scatter or all_reduce of `size` numbers is wrong."""
    every = [numbers(rank, size, world) for rank in range(world.size)]
    mine = every[world.rank]
    parts = [torch.zeros_like(mine) for _ in every] if world.rank == 0 else None
    dist.gather(mine, parts)
    for rank, part in enumerate(parts or []):
        verify(part, every[rank], f"gather at rank 0, the part of rank {rank}")
    part = torch.zeros_like(mine)
    dist.scatter(part, every if world.rank == 0 else None)
    verify(part, mine, f"scatter at rank {world.rank}")
    total = mine.clone()
    dist.all_reduce(total)
    verify(total, torch.stack(every).sum(0), f"all_reduce at rank {world.rank}")


def verify(got: torch.Tensor, right: torch.Tensor, what: str) -> None:
    """Raise UserError, naming the first wrong number, unless both tensors are equal."""
    wrong = (got != right).nonzero()
    if len(wrong):
        first = int(wrong[0])
        raise UserError(
            f"{what}: {got[first].item()} instead of {right[first].item()}, number {first} of "
            f"{len(right)}. Reinstall torch, and test that machine's memory and network card"
        )


def measure_pairs(world: World) -> Iterator[str]:
    """Measure one pair after another, so that none disturbs another; yield a line per direction."""
    pairs = list(itertools.combinations(range(world.size), 2))
    for pair in pairs if world.size <= ALL_PAIRS else pairs[: world.size - 1]:
        mine = None
        if world.rank in pair:
            mine = measure(world, sum(pair) - world.rank, world.rank == pair[0])
        measured = gather(world, mine)
        for here, there in (pair, pair[::-1]):
            latency, rate = measured[here]
            yield (
                f"rank {here} to rank {there}: latency {latency * 1e6:.0f} us, bandwidth "
                f"{rate / 1e6:.0f} MB/s ({rate * 8 / 1e9:.2f} Gbit/s)"
            )


def measure(world: World, peer: int, first: bool) -> tuple[float, float]:
    """Latency in seconds, and bytes per second from this rank to `peer`, which measures too."""
    small = torch.ones(2, device=world.device)
    large = torch.ones(MESSAGE_BYTES // 4, device=world.device)
    latency = statistics.median(round_trips(small, small, peer, first, 200)[20:]) / 2
    seconds = {asks: min(round_trips(large, small, peer, asks, 3)) for asks in (first, not first)}
    return latency, MESSAGE_BYTES / (seconds[True] - latency)


def round_trips(
    question: torch.Tensor, answer: torch.Tensor, peer: int, asks: bool, times: int
) -> list[float]:
    """The seconds of each round: the rank that `asks` sends `question` and gets `answer`."""
    seconds = []
    for _ in range(times):
        start = time.perf_counter()
        if asks:
            dist.send(question, peer)
            dist.recv(answer, peer)
        else:
            dist.recv(question, peer)
            dist.send(answer, peer)
        answer.tolist()  # waits for a GPU
        seconds.append(time.perf_counter() - start)
    return seconds


def time_all_reduce(world: World) -> float:
    """The seconds of an all_reduce of BUCKET_BYTES, once warm."""
    bucket = torch.ones(BUCKET_BYTES // 4, device=world.device)
    for _ in range(2):
        dist.barrier()
        start = time.perf_counter()
        dist.all_reduce(bucket)
        bucket[0].item()  # waits for a GPU
        seconds = time.perf_counter() - start
    return seconds


def start(argv: list[str] | None = None) -> None:
    """Run the command: parse the flags, join the workers, check, and exit."""
    if argv is not None:  # what `python -m cluster` leaves of the command line
        sys.argv[1:] = argv
    run(main, __file__, DEFAULTS)


if __name__ == "__main__":
    start()
