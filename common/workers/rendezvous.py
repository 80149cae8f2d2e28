"""Where workers meet before there is a process group: a key-value store that rank 0 serves."""

import json
import socket
import sys
import time
from datetime import timedelta

from common.errors import UserError
from common.workers.heartbeat import ending_after
from common.workers.network import addresses, resolve

import torch.distributed as dist


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
    left = max(1, deadline - time.monotonic())
    hint = "another program may listen there: choose another --master_port, the same for every rank"
    silent = f"rank {rank}: what listens at {place} does not answer as rank 0 would; {hint}"
    try:
        with ending_after(left + 2, silent):
            return dist.TCPStore(
                args.master_ip,
                args.master_port,
                None,
                rank == 0,
                timedelta(seconds=left),
                wait_for_workers=False,
            )
    except dist.DistError as error:
        if rank == 0:
            check_master_is_here(args)  # another rank 0 may have come since we looked
        raise UserError(f"rank {rank}: no store at {place}: {first_line(error)}; {hint}") from None


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
                "other run uses; is another rank 0 running?"
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
                f"rank {rank} found no rank 0 at {place} ({where[0]} for this machine; 127.x is "
                f"every machine's own) within {args.timeout:g} s: {reason}. "
                "Is rank 0 running, with the same --master_ip and --master_port, and can this "
                "machine reach that address (try `ping`)?"
            )
        notice.show()
        time.sleep(0.2)


def meet(store, watch, topic, me, size, deadline):
    """Tell `me` under `topic`, wait for all ranks, and return what they told, by rank.

    Raises UserError on what cannot go together: a rank that is missing or there twice, or facts
    that differ.
    """
    silent = (
        f"rank {me['rank']} waits in vain: rank 0 does not answer (suspended, or its machine or "
        "network is down). Look at its own output, and at its machine"
    )
    with ending_after(max(0, deadline - time.monotonic()) + 2, silent):
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
                    f"rank {me['rank']} waited in vain for rank {ranks} of {size}. Start every "
                    "rank, with the same --master_ip, --master_port and --world_size; look at the "
                    "output of the missing ones; --timeout SECONDS waits longer"
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
