"""The workers of a run: how one joins the others, and how it leaves. The only owner of both."""

import os
import platform
import socket
import time
from dataclasses import dataclass
from datetime import timedelta

from common.errors import UserError
from common.workers.heartbeat import PeerLost, Watch, is_loss_of_peer, stack_of
from common.workers.network import check_ways, interface, knock, loopback
from common.workers.rendezvous import first_line, meet, open_store

import tokenizers
import torch
import torch.distributed as dist
import transformers

# Flags that may differ between workers: where things lie on each machine, and who it is.
# What lies there is compared by content, in check_identical_across_ranks().
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
    address, nic = interface(args)
    store = open_store(args, rank, size, deadline)
    watch = Watch(store, rank, size, args.timeout)
    try:
        os.environ["GLOO_SOCKET_IFNAME"] = nic  # else gloo trusts the host name's address
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        with socket.create_server((address, 0), family=family, backlog=size) as door:
            me = introduce(args, rank, address, nic) | {"door": door.getsockname()[:2]}
            members = meet(store, watch, "roster", me, size, deadline)
            me["blocked"] = [line for member in members for line in knock(me, member, args)]
            try:
                check_ways(meet(store, watch, "blocked", me, size, deadline + args.timeout / 3))
            except (UserError, PeerLost):
                check_ways([me])  # a rank that has ended tells nothing, but refuses
                raise
        backend, device = choose_device(args, rank, members)
        share_cores(rank, members)
        options = {"device_id": device} if backend == "nccl" else {}
        # SOLUTION(task1): open the process group; its store: a PrefixStore of `store`, named group
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


def check_identical_across_ranks(world, **facts):
    """Make sure that every worker holds equal `facts`, such as its data's and weights' digests.

    Raises UserError naming the rank and the value on each side where they differ.
    """
    deadline = time.monotonic() + world.timeout
    me = {"rank": world.rank, "host": socket.gethostname(), "facts": facts}
    meet(world.store, world.watch, "facts", me, world.size, deadline)


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
