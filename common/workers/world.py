"""The workers of a run: how one joins the others, and how it leaves. It owns the process group."""

import os
import platform
import socket
import time
from dataclasses import dataclass, replace
from datetime import timedelta

from common.errors import UserError
from common.layers import is_divided, parts_of
from common.tasks import SCRIPTS
from common.workers import meeting_file
from common.workers.heartbeat import Heartbeat
from common.workers.network import check_reachability, interface, loopback, probe_listener
from common.workers.rendezvous import (
    Notice,
    StrayError,
    exchange,
    first_line,
    join_roster,
    open_store,
)
from common.workers.stacks import stack_of
from common.workers.verdict import PeerLostError, is_loss_of_peer

import tokenizers
import torch
import torch.distributed as dist
import transformers

# Flags that may differ between workers: paths on each machine, and which worker it is.
# What those paths hold is compared by content, in check_identical_across_ranks().
PER_WORKER_FLAGS = {
    "local_rank",
    "data_dir",
    "output_dir",
    "cache_dir",
    "launcher",
    "no_cuda",
    "master_ip",
    "master_port",
    "model_name_or_path",
    "config_name",
    "tokenizer_name",
    "deepspeed_config",
    "overwrite_cache",
    "overwrite_output_dir",
    "resume",
    "init_method",
}


@dataclass(frozen=True)
class World:
    """The workers of one run, as one of them sees it.

    `rank` is this worker's global rank, 0 to size - 1; `device` is where its tensors live;
    `members` is what each worker published about itself, by rank; `nic` is the network interface
    that the run's traffic crosses on this machine; `store` is shared by all workers. The model is
    divided over `parts` ranks, one after another, which read the same rows: `parts_group` has those
    of one replica, `replicas_group` those that hold the same part of each replica.
    """

    rank: int
    size: int
    device: torch.device
    backend: str
    members: list
    nic: str
    store: dist.Store
    heartbeat: Heartbeat
    timeout: float
    parts: int = 1
    parts_group: dist.ProcessGroup | None = None
    replicas_group: dist.ProcessGroup | None = None

    def readers(self):
        """The world with one rank for each replica of the model, as they share the data."""
        return replace(self, rank=self.rank // self.parts, size=self.size // self.parts)


def join(args):
    """Find the other workers, check that all were started alike, and open the process group.

    Raises UserError if a worker is missing, was started twice, or with other settings: it names the
    rank and the value on each side.
    """
    rank, size = args.local_rank, args.world_size  # the course's --local_rank is the global rank
    deadline = time.monotonic() + args.timeout
    meeting_file.meet(args, deadline, Notice())
    address, nic = interface(args)
    store = open_store(args, rank, size, deadline)
    heartbeat = Heartbeat(store, rank, size, args.timeout)
    try:
        os.environ["GLOO_SOCKET_IFNAME"] = nic  # else gloo trusts the host name's address
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        with socket.create_server((address, 0), family=family, backlog=size) as listener:
            me = worker_info(args, rank, address, nic) | {"listener": listener.getsockname()[:2]}
            members = join_roster(store, heartbeat, me, size, deadline)
            heartbeat.admitted = True
            checked = time.monotonic() + heartbeat.limit
            me["blocked"] = [
                line for member in members for line in probe_listener(me, member, args)
            ]
            try:
                check_reachability(exchange(store, heartbeat, "blocked", me, size, checked))
            except (UserError, PeerLostError):
                check_reachability([me])  # a rank that has ended publishes nothing, but refuses
                raise
        backend, device = choose_device(args, rank, members)
        os.environ.setdefault("DS_ACCELERATOR", device.type)  # else DeepSpeed, if installed, warns
        share_cores(rank, members)
        task = SCRIPTS.get(args.task)
        if size > 1 or not task or task.distributed:
            open_group(
                backend,
                dist.PrefixStore("group", store),
                rank,
                size,
                timeout=timedelta(seconds=heartbeat.limit),
                device_id=device if backend == "nccl" else None,
            )
    except StrayError:
        heartbeat.left.set()  # and writes nothing: the run that is going on must not notice
        raise
    except BaseException as error:
        if is_loss_of_peer(error):
            heartbeat.give_up(stack_of(error))
            raise PeerLostError from None
        heartbeat.fail(first_line(error))
        raise
    shared = len({member["address"] for member in members}) == 1
    nic = loopback() if shared else os.environ["GLOO_SOCKET_IFNAME"]
    joined = World(rank, size, device, backend, members, nic, store, heartbeat, args.timeout)
    return in_groups(joined, parts_of(args)) if is_divided(args) else joined


def open_group(backend, store, rank, size, **options):
    """Open the process group, through which the ranks talk; each waits until all are there.

    They find each other through `store`, so there is no address to give; `options` go on as they
    are.
    """
    # SOLUTION(task2a): call init_process_group with the backend, store, rank, world size, options
    dist.init_process_group(backend, store=store, rank=rank, world_size=size, **options)


def in_groups(world, parts):
    """The world with groups of `parts` ranks, each of which holds one replica of the model."""
    replicas = [list(range(at, at + parts)) for at in range(0, world.size, parts)]
    same_part = [list(each) for each in zip(*replicas, strict=True)]
    timeout = timedelta(seconds=world.heartbeat.limit)
    group, _ = dist.new_subgroups_by_enumeration(replicas, timeout=timeout)
    others, _ = dist.new_subgroups_by_enumeration(same_part, timeout=timeout)
    return replace(world, parts=parts, parts_group=group, replicas_group=others)


def leave(world):
    """Close the process group once every worker has finished.

    Raises PeerLostError where one does not: then the run has not succeeded.
    """
    world.heartbeat.finish()
    meeting_file.remove()
    if dist.is_initialized():
        dist.destroy_process_group()


def check_identical_across_ranks(world, facts):
    """Check that every worker has the same `facts` (name -> value), such as digests of its data.

    Raises UserError where they differ: it names the rank and the value on each side.
    """
    deadline = time.monotonic() + world.heartbeat.limit
    me = {"rank": world.rank, "host": socket.gethostname(), "facts": facts}
    exchange(world.store, world.heartbeat, "facts", me, world.size, deadline)


def worker_info(args, rank, address, nic):
    """What a worker publishes about itself; `facts` must be the same on all."""
    flags = {name: value for name, value in vars(args).items() if name not in PER_WORKER_FLAGS}
    libraries = (torch, transformers, tokenizers)
    return {
        "rank": rank,
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "id": os.urandom(8).hex(),
        "since": time.strftime("%Y-%m-%d %H:%M:%S %z"),
        "address": address,
        "nic": os.environ.get("GLOO_SOCKET_IFNAME", nic),
        "gpus": 0 if args.no_cuda or not torch.cuda.is_available() else torch.cuda.device_count(),
        "python": platform.python_version(),
        "resume": args.resume,
        "facts": {
            **{f"--{name}": value for name, value in flags.items() if name != "task"},
            "the task": args.task,
            **{f"the version of {lib.__name__}": lib.__version__ for lib in libraries},
        },
    }


def choose_device(args, rank, members):
    """Backend and device: nccl where every worker has its own GPU, else gloo on the CPU."""
    neighbors = [member["rank"] for member in members if member["host"] == members[rank]["host"]]
    hosts = [member["host"] for member in members]
    own_gpu = all(member["gpus"] >= hosts.count(member["host"]) for member in members)
    if args.backend == "nccl" and not own_gpu:
        without = sum(m["gpus"] < hosts.count(m["host"]) for m in members)
        raise UserError(
            f"--backend nccl: needs a GPU for each worker, but {without} of {len(members)} workers "
            "share one or have none; start fewer workers, or use --backend gloo (on the CPU)"
        )
    if args.backend == "gloo" or not own_gpu:
        return "gloo", torch.device("cpu")
    device = torch.device("cuda", neighbors.index(rank))
    torch.cuda.set_device(device)
    return "nccl", device


def share_cores(rank, members):
    """Divide this machine's cores among its workers: more threads than cores are far slower."""
    if "OMP_NUM_THREADS" not in os.environ:
        workers = sum(member["host"] == members[rank]["host"] for member in members)
        cores = os.cpu_count() or 1
        if hasattr(os, "sched_getaffinity"):  # not on macOS
            cores = len(os.sched_getaffinity(0))
        torch.set_num_threads(max(1, cores // workers))
