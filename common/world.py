"""The workers of a run: how one joins the others, and how it leaves. The only owner of both."""

import json
import os
import platform
import socket
import sys
import time
from dataclasses import dataclass
from datetime import timedelta

from common.errors import UserError
from common.watch import PeerLost, Watch, is_loss_of_peer, stack_of

import psutil
import tokenizers
import torch
import torch.distributed as dist
import transformers

# Flags that may differ between workers: where things lie on each machine, and who it is.
# What lies there is compared by content, in agree().
PERSONAL = {
    *("local_rank", "data_dir", "output_dir", "cache_dir", "launcher", "no_cuda"),
    *("master_ip", "master_port"),
    *("model_name_or_path", "config_name", "tokenizer_name"),
    *("overwrite_cache", "overwrite_output_dir"),
}
EXPLAINING = 8.0  # seconds of --timeout that are kept for finding out who was lost


@dataclass(frozen=True)
class World:
    """The workers of one run, as one of them sees it.

    `rank` is this worker's global rank, 0 to size - 1; `device` is where its tensors live;
    `members` are what the workers told of themselves, by rank; `nic` is the network interface that
    the run's traffic crosses on this machine; `store` is what the workers share beside collectives.
    """

    rank: int
    size: int
    device: torch.device
    backend: str
    members: list
    nic: str
    store: dist.Store
    watch: Watch
    timeout: float


def join(args):
    """Meet the other workers, agree with them, and open the process group.

    Raises UserError where a worker is missing, there twice, or started differently: it names the
    rank and the value on each side.
    """
    rank, size = args.local_rank, args.world_size  # the course's --local_rank is the global rank
    deadline = time.monotonic() + args.timeout
    store = open_store(args, rank, size, deadline)
    address, nic = route_to(args.master_ip) if size > 1 else ("127.0.0.1", loopback())
    os.environ.setdefault("GLOO_SOCKET_IFNAME", nic)  # else gloo trusts the host name's address
    watch = Watch(store, rank, size, args.timeout)
    try:
        me = introduce(args, rank, address, nic)
        members = meet(store, watch, "roster", me, size, deadline)
        backend, device = choose_device(args, rank, members)
        share_cores(rank, members)
        options = {"device_id": device} if backend == "nccl" else {}
        dist.init_process_group(
            backend,
            store=dist.PrefixStore("group", store),
            rank=rank,
            world_size=size,
            timeout=timedelta(seconds=max(args.timeout / 2, args.timeout - EXPLAINING)),
            **options,
        )
    except BaseException as error:
        if is_loss_of_peer(error):
            watch.give_up(stack_of(error))
            raise PeerLost from None
        watch.leave("failed", first_line(error))
        raise
    shared = len({member["address"] for member in members}) == 1
    nic = loopback() if shared else os.environ["GLOO_SOCKET_IFNAME"]
    return World(rank, size, device, backend, members, nic, store, watch, args.timeout)


def leave(world):
    """Close the process group once every worker is done with it."""
    world.watch.leave("done")
    dist.destroy_process_group()


def agree(world, **facts):
    """Make sure that every worker holds equal `facts`, such as its data's and weights' digests.

    Raises UserError naming the rank and the value on each side where they differ.
    """
    deadline = time.monotonic() + world.timeout
    me = {"rank": world.rank, "host": socket.gethostname(), "facts": facts}
    meet(world.store, world.watch, "facts", me, world.size, deadline)


def open_store(args, rank, size, deadline):
    """The key-value store that the workers meet in; rank 0 (or torchrun's agent) serves it."""
    if size == 1:
        return dist.HashStore()
    if args.launcher == "torchrun":  # its agent may serve the store already: only env:// knows
        timeout = timedelta(seconds=args.timeout)
        store, _, _ = next(dist.rendezvous("env://", rank, size, timeout=timeout))
        return store
    place = f"{args.master_ip}:{args.master_port}"
    if rank == 0:
        check_master_is_here(args)
    else:
        wait_for_master(args, rank, deadline)
    try:
        left = timedelta(seconds=max(1, deadline - time.monotonic()))
        return dist.TCPStore(
            args.master_ip, args.master_port, None, rank == 0, left, wait_for_workers=False
        )
    except dist.DistError as error:
        raise UserError(f"rank {rank}: no store at {place}: {first_line(error)}") from None


def check_master_is_here(args):
    """Raise UserError unless rank 0 can listen at the master's address and port."""
    ip, port = args.master_ip, args.master_port
    family, kind, _, _, where = resolve(ip, port)
    with socket.socket(family, kind) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(where)
        except OSError as error:
            here = ", ".join(sorted(addresses()))
            raise UserError(
                f"rank 0 cannot listen at {ip}:{port}: {error.strerror}. --master_ip must be an "
                f"address of rank 0's own machine (here: {here}), --master_port a port that no "
                "other run uses"
            ) from None


def wait_for_master(args, rank, deadline):
    """Return once something listens at the master's address; raise UserError at the deadline."""
    family, kind, _, _, where = resolve(args.master_ip, args.master_port)
    place = f"{args.master_ip}:{args.master_port}"
    notice = Notice(f"rank {rank} waits for rank 0 at {place}")
    while True:
        with socket.socket(family, kind) as probe:
            probe.settimeout(3)
            try:
                return probe.connect(where)
            except OSError as error:
                reason = error.strerror or "no answer"
        if time.monotonic() > deadline:
            raise UserError(
                f"rank {rank} found no rank 0 at {place} within {args.timeout:g} s: {reason}. "
                "Is rank 0 running, with the same --master_ip and --master_port, and can this "
                "machine reach that address (try `ping`)?"
            )
        notice.show()
        time.sleep(0.2)


def resolve(ip, port):
    """The socket address of ip:port; raises UserError where the name is unknown."""
    try:
        return socket.getaddrinfo(ip, port, type=socket.SOCK_STREAM)[0]
    except (OSError, UnicodeError) as error:
        raise UserError(f"--master_ip {ip}: no such host ({error}); give its address") from None


def addresses():
    """Address -> interface, of this machine."""
    families = (socket.AF_INET, socket.AF_INET6)
    return {
        entry.address.split("%")[0]: name
        for name, entries in psutil.net_if_addrs().items()
        for entry in entries
        if entry.family in families
    }


def loopback():
    """The name of the loopback interface: lo, or lo0 on macOS."""
    return addresses().get("127.0.0.1", "lo")


def route_to(ip):
    """This machine's own address, and interface, on the way to `ip`; nothing is sent."""
    family, _, _, _, where = resolve(ip, 9)
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect(where)
        address = probe.getsockname()[0]
    # A whole network may lie behind one address: 127.0.0.5 is loopback too.
    return address, addresses().get(address, loopback())


def introduce(args, rank, address, nic):
    """What a worker tells the others of itself; `facts` must be the same on all."""
    flags = {name: value for name, value in vars(args).items() if name not in PERSONAL}
    libraries = (torch, transformers, tokenizers)
    return {
        "rank": rank,
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "address": address,
        "nic": os.environ.get("GLOO_SOCKET_IFNAME", nic),
        "gpus": 0 if args.no_cuda or not torch.cuda.is_available() else torch.cuda.device_count(),
        "python": platform.python_version(),
        "facts": {
            **{f"--{name}": value for name, value in flags.items() if name != "task"},
            "the task": args.task,
            **{f"the version of {lib.__name__}": lib.__version__ for lib in libraries},
        },
    }


def meet(store, watch, topic, me, size, deadline):
    """Tell `me` under `topic`, wait for all ranks, and return what they told, by rank.

    Raises UserError on what cannot go together: a rank that is missing or there twice, or facts
    that differ.
    """
    store.append(topic, json.dumps(me) + "\n")
    notice = Notice()
    while True:
        told = [json.loads(line) for line in store.get(topic).decode().splitlines()]
        problems = differences(told)
        if problems:
            raise UserError("the workers do not go together:\n" + "\n".join(problems))
        if len(told) == size:
            return sorted(told, key=lambda member: member["rank"])
        missing = sorted(set(range(size)) - {member["rank"] for member in told})
        ranks = ", ".join(map(str, missing))
        watch.check()
        if time.monotonic() > deadline:
            raise UserError(
                f"rank {me['rank']} waited in vain for rank {ranks} of {size}. Start every rank, "
                "with the same --master_ip, --master_port and --world_size; look at the output of "
                "the missing ones; --timeout SECONDS waits longer"
            )
        notice.show(f"rank {me['rank']} waits for rank {ranks} of {size}")
        time.sleep(0.02)


def differences(told):
    """A line for every rank that is there twice and every fact that two workers differ in."""
    first, seen, lines = told[0], {}, []
    for member in told:
        who = f"{member['host']}, process {member.get('pid')}"
        other = seen.setdefault(member["rank"], who)
        if other != who:
            lines.append(
                f"- rank {member['rank']} is there twice: on {other} and on {who}; give every "
                "worker a --local_rank of its own"
            )
        for name, value in member["facts"].items():
            if value != first["facts"].get(name):
                lines.append(
                    f"- {name} is {first['facts'].get(name)!r} at rank {first['rank']} "
                    f"({first['host']}) but {value!r} at rank {member['rank']} ({member['host']}); "
                    "start all workers alike"
                )
    return lines


def choose_device(args, rank, members):
    """Backend and device: nccl where every worker has a GPU of its own, else gloo on the CPU."""
    neighbours = [member["rank"] for member in members if member["host"] == members[rank]["host"]]
    hosts = [member["host"] for member in members]
    own_gpu = all(member["gpus"] >= hosts.count(member["host"]) for member in members)
    if args.backend == "nccl" and not own_gpu:
        raise UserError(
            f"--backend nccl: it needs a GPU for each worker, but of {len(members)} workers "
            f"{sum(m['gpus'] < hosts.count(m['host']) for m in members)} share one or have none; "
            "start fewer workers, or use --backend gloo (on the CPU)"
        )
    if args.backend == "gloo" or not own_gpu:
        return "gloo", torch.device("cpu")
    device = torch.device("cuda", neighbours.index(rank))
    torch.cuda.set_device(device)
    return "nccl", device


def share_cores(rank, members):
    """Divide this machine's cores among its workers: more threads than cores crawl."""
    if "OMP_NUM_THREADS" not in os.environ:
        workers = sum(member["host"] == members[rank]["host"] for member in members)
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
        torch.set_num_threads(max(1, cores // workers))


def first_line(error):
    """The first line of an exception's message: what follows may be C++ frames."""
    return (str(error) or repr(error)).splitlines()[0]


class Notice:
    """Says on standard error what is being waited for: after 5 s, then every 15 s."""

    def __init__(self, text=""):
        self.text, self.due = text, time.monotonic() + 5

    def show(self, text=""):
        if time.monotonic() > self.due:
            self.due = time.monotonic() + 15
            print(text or self.text, "...", file=sys.stderr, flush=True)
