"""Check a cluster before an evening is lost on it: who is there, how fast, and what is wrong.

    python -m cluster.hello --master_ip 10.10.1.1 --master_port 6585 --world_size 4 --local_rank R

Run it once per worker, like a training script (under torchrun or srun with no flags at all). It
joins the workers as training does. Rank 0 prints the report: every worker's host, interface and
versions; whether gather, scatter and all_reduce are right; latency and bandwidth between ranks;
what may go wrong later. What keeps the workers apart is told within --timeout (here 60 seconds if
not given). The other flags of the training scripts are taken, too, and compared between workers.
"""

import contextlib
import ipaddress
import itertools
import json
import os
import socket
import statistics
import sys
import threading
import time
from datetime import timedelta

from common import cli
from common.errors import UserError
from common.run import run
from common.watch import SOON
from common.world import addresses, resolve, route_to

import psutil
import torch
import torch.distributed as dist

# Flags that training requires; those on the command line come later, and win.
DEFAULTS = (
    "--data_dir . --output_dir . --model_name_or_path tiny --task_name RTE --do_eval --timeout 60"
)
SIZES = (1, 1000, 1_000_003)  # numbers in the collectives that are checked
MESSAGE, BUCKET = 8_000_000, 25_000_000  # bytes
ALL_PAIRS = 8  # with more workers, only rank 0's pairs are measured
SLOW = 1000  # Mbit/s


def main(args, world):
    """Check and measure everything; rank 0 prints the report."""
    say = print if world.rank == 0 else lambda *_: None
    say(f"{world.size} workers, backend {world.backend}")
    told = gather(world, (describe(args, world), doubts(args, world)))
    for line in table([row for row, _ in told]):
        say(line)
    for size in SIZES:
        check_collectives(world, size)
    dist.barrier()
    say(f"gather, scatter and all_reduce of {', '.join(map(str, SIZES))} numbers: right everywhere")
    for line in measure_pairs(world):
        say(line)
    say(f"all_reduce of {BUCKET / 1e6:g} MB: {time_all_reduce(world) * 1e3:.1f} ms")
    for line in [line for _, lines in told for line in lines]:
        say(f"warning: {line}")


def gather(world, mine):
    """What every rank holds as `mine`, by rank; a barrier, too."""
    told = [None] * world.size
    dist.all_gather_object(told, mine)
    return told


def interface(args):
    """(address, name) of the interface that gloo uses here, and the name of the master route's."""
    address, route = route_to(args.master_ip or "127.0.0.1")
    nic = os.environ.get("GLOO_SOCKET_IFNAME", route).split(",")[0]
    if nic != route:
        address = next(address for address, name in addresses().items() if name == nic)
    return address, nic, route


def describe(args, world):
    """This worker's row of the report."""
    me, (address, nic, _) = world.members[world.rank], interface(args)
    speed = psutil.net_if_stats()[nic].speed
    return {
        **{"rank": world.rank, "host": me["host"], "address": address, "interface": nic},
        "Mbit/s": speed or "unknown",
        "threads": torch.get_num_threads(),
        "GPUs": me["gpus"],
        "python": me["python"],
        "torch": torch.__version__,
    }


def doubts(args, world):
    """What may go wrong later with this worker: a list of lines."""
    me, (address, nic, route) = world.members[world.rank], interface(args)
    who, lines = f"rank {world.rank} ({me['host']}):", []
    try:
        name = socket.gethostbyname(me["host"])
    except OSError:
        name = "unknown"
    apart = len({member["address"] for member in world.members}) > 1
    if apart and (name == "unknown" or name.startswith("127.")):
        lines.append(
            f"{who} its host name is {name} to itself (see /etc/hosts). This kit does not mind, "
            f"but other programs will not get through unless they set GLOO_SOCKET_IFNAME={nic}"
        )
    if nic != route:
        lines.append(
            f"{who} GLOO_SOCKET_IFNAME={nic} ({address}), but the route to the master is by "
            f"{route}: unset it, unless you want that"
        )
    if 0 < psutil.net_if_stats()[nic].speed < SLOW:
        lines.append(
            f"{who} {nic} is slow ({psutil.net_if_stats()[nic].speed} Mbit/s); if there is a "
            "faster network, give rank 0's address in that as --master_ip"
        )
    return lines


def table(rows):
    """The lines of a table with a column for every key."""
    cells = [list(rows[0]), *([str(cell) for cell in row.values()] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for row in cells:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


def numbers(rank, size, world):
    """A rank's own whole numbers, small enough for exact sums in float32."""
    return torch.arange(size, device=world.device).remainder(100).add(100 * rank).float()


def check_collectives(world, size):
    """Raise UserError where gather, scatter or all_reduce of `size` numbers gives a wrong one."""
    every = [numbers(rank, size, world) for rank in range(world.size)]
    mine = every[world.rank]
    parts = [torch.zeros_like(mine) for _ in every] if world.rank == 0 else None
    dist.gather(mine, parts)
    for rank, part in enumerate(parts or []):
        verify(part, every[rank], f"gather: rank 0 got from rank {rank}")
    part = torch.zeros_like(mine)
    dist.scatter(part, every if world.rank == 0 else None)
    verify(part, mine, f"scatter: rank {world.rank} got")
    total = mine.clone()
    dist.all_reduce(total)
    verify(total, sum(every), f"all_reduce: rank {world.rank} got")


def verify(got, right, what):
    """Raise UserError, naming the first wrong number, unless both tensors are equal."""
    for index in (got != right).nonzero()[:1, 0].tolist():
        raise UserError(
            f"{what} {got[index]:g} and not {right[index]:g}, number {index} of {len(right)}. "
            "Reinstall torch there; test that machine's memory and network card"
        )


def measure_pairs(world):
    """Measure one pair after another, so that none disturbs another; yield a line for each way."""
    pairs = list(itertools.combinations(range(world.size), 2))
    for pair in pairs if world.size <= ALL_PAIRS else pairs[: world.size - 1]:
        mine = None
        if world.rank in pair:
            mine = measure(world, sum(pair) - world.rank, world.rank == pair[0])
        told = gather(world, mine)
        for here, there in (pair, pair[::-1]):
            latency, rate = told[here]
            yield (
                f"rank {here} to {there}: latency {latency * 1e6:.0f} us, bandwidth "
                f"{rate / 1e6:.0f} MB/s ({rate * 8 / 1e9:.2f} Gbit/s)"
            )


def measure(world, peer, first):
    """Latency in seconds, and bytes per second from this rank to `peer`, which measures too."""
    small = torch.zeros(2, device=world.device)
    large = torch.zeros(MESSAGE // 4, device=world.device)
    latency = statistics.median(round_trips(small, small, peer, first, 200)[20:]) / 2
    seconds = {turn: min(round_trips(large, small, peer, turn, 3)) for turn in (first, not first)}
    return latency, MESSAGE / (seconds[True] - latency)


def round_trips(question, answer, peer, first, times):
    """The seconds of each round: the first of the two sends `question` and gets `answer`."""
    seconds = []
    for _ in range(times):
        start = time.perf_counter()
        if first:
            dist.send(question, peer)
            dist.recv(answer, peer)
        else:
            dist.recv(question, peer)
            dist.send(answer, peer)
        answer.tolist()  # waits for a GPU
        seconds.append(time.perf_counter() - start)
    return seconds


def time_all_reduce(world):
    """The seconds of an all_reduce of BUCKET bytes, once warm."""
    bucket = torch.zeros(BUCKET // 4, device=world.device)
    for _ in range(2):
        dist.barrier()
        start = time.perf_counter()
        dist.all_reduce(bucket)
        bucket[0].item()  # waits for a GPU
        seconds = time.perf_counter() - start
    return seconds


def check_interface():
    """End this process if GLOO_SOCKET_IFNAME is set to what gloo cannot use."""
    here = addresses()
    for name in filter(None, os.environ.get("GLOO_SOCKET_IFNAME", "").split(",")):
        if name not in here.values():
            known = ", ".join(f"{nic} ({address})" for address, nic in here.items())
            sys.exit(
                f"hello.py: GLOO_SOCKET_IFNAME={name}: this machine has no such interface, or no "
                f"address on it. Here are: {known}. Unset it, and the route to the master decides"
            )


def knock():
    """Beside join: end this process, saying why, if some worker cannot connect to another.

    gloo names no worker, and is not in time: where a firewall drops packets it has been seen to
    try for 137 s with a timeout of 40 s.
    """
    with contextlib.suppress(UserError, RuntimeError):  # join meets these as well, and tells them
        args = cli.parse_args(__file__)
        if args.world_size > 1:
            doubt_name(args)
            blocked = blocked_ways(args)
            if blocked:
                print(f"hello.py: {blocked}", file=sys.stderr, flush=True)
                time.sleep(SOON if args.local_rank == 0 else 0)  # rank 0 serves the store
                os._exit(2)


def doubt_name(args):
    """Warn of a name for the master that means another machine on every machine."""
    ip = resolve(args.master_ip, args.master_port)[4][0]
    if args.master_ip not in (ip, "localhost") and ipaddress.ip_address(ip).is_loopback:
        print(
            f"hello.py: warning: at rank {args.local_rank}, --master_ip {args.master_ip} is {ip}, "
            "which every machine has to itself (see /etc/hosts). If the workers are on several "
            "machines, give rank 0's address in their network",
            file=sys.stderr,
            flush=True,
        )


def blocked_ways(args):
    """What to say if some worker cannot connect to another, else ""; the same on every rank."""
    rank, size, limit = args.local_rank, args.world_size, timedelta(seconds=args.timeout + 60)
    port = args.master_port
    store = dist.TCPStore(args.master_ip, port, None, False, limit, wait_for_workers=False)
    address, nic, _ = interface(args)
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    blocked = []
    with socket.create_server((address, 0), family=family, backlog=size) as door:
        me = (rank, nic, *door.getsockname()[:2])
        for other, its_nic, *its_door in sorted(exchange(store, "doors", me, size)):
            try:
                socket.create_connection(its_door, args.timeout / 3 / size).close()
            except OSError as error:
                blocked.append(
                    f"- rank {rank} ({address}, {nic}) to rank {other} ({its_door[0]}, {its_nic}): "
                    f"{error.strerror or 'no answer'}"
                )
        lines = sorted(itertools.chain(*exchange(store, "blocked", blocked, size)))
    if lines:
        lines.insert(0, f"all workers reached rank 0's port {port}, but not each other:")
        lines.append(
            "Open all TCP ports between the machines (firewalls, security groups). The addresses "
            "above must be of one network (127.x is none: see --master_ip, GLOO_SOCKET_IFNAME)"
        )
    return "\n".join(lines)


def exchange(store, topic, words, size):
    """Tell `words` under `topic`, and return what all ranks told, once they have."""
    store.append(topic, json.dumps(words) + "\n")
    while len(told := store.get(topic).splitlines()) < size:
        time.sleep(0.05)
    return [json.loads(line) for line in told]


if __name__ == "__main__":
    check_interface()
    sys.argv[1:1] = DEFAULTS.split()
    threading.Thread(target=knock, daemon=True).start()
    run(main, __file__)
