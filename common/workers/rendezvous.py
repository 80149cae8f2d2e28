"""How workers find each other before there is a process group: a store that rank 0 serves."""

import json
import os
import socket
import sys
import time
from datetime import timedelta

from common.errors import UserError
from common.workers import meeting_file
from common.workers.ending import ending_after
from common.workers.launchers import advice, restarts
from common.workers.network import addresses, resolve
from common.workers.verdict import PeerLostError

import torch.distributed as dist


class StrayError(UserError):
    """This worker belongs to no run that is going on at its --master_ip and --master_port."""


def open_store(args, rank, size, deadline):
    """The key-value store that all workers share; rank 0 (or torchrun's agent) serves it."""
    if size == 1:
        return dist.HashStore()
    if args.launcher == "torchrun":  # its agent may serve the store already: only env:// knows
        timeout = timedelta(seconds=args.timeout)
        store, _, _ = next(dist.rendezvous("env://", rank, size, timeout=timeout))
        if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
            return store  # rank 0 serves a new one after each restart
        if rank == 0 and (text := advice(os.environ)):
            print(text, file=sys.stderr)
        # The agent's store still holds what the workers wrote before a restart.
        return dist.PrefixStore(f"restart{restarts(os.environ)}", store)
    place = f"{args.master_ip}:{args.master_port}"
    if rank == 0:
        check_master_is_here(args)
    else:
        wait_for_master(args, rank, deadline)
    left = max(1, deadline - time.monotonic())
    hint = "another program may be listening there: choose another --master_port, on every rank"
    silent = f"rank {rank}: whatever listens at {place} does not respond like rank 0; {hint}"
    try:
        with ending_after(left + 2, lambda: silent):
            store = dist.TCPStore(
                args.master_ip,
                args.master_port,
                None,
                rank == 0,
                timedelta(seconds=left),
                wait_for_workers=False,
            )
    except dist.DistError as error:
        if rank == 0:
            check_master_is_here(args)  # another rank 0 may have started since we looked
        raise UserError(
            f"rank {rank}: cannot open the store at {place}: {first_line(error)}; {hint}"
        ) from None
    if rank == 0 and meeting_file.path_of(args):
        meeting_file.publish(args)
    return store


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
                f"address of rank 0's machine (this one has {here}), and --master_port a port that "
                "no other run uses; is another rank 0 running?"
            ) from None


def wait_for_master(args, rank, deadline):
    """Return once something listens at the master's address; raise UserError at the deadline."""
    family, kind, _, _, where = resolve(args.master_ip, args.master_port)
    place = f"{args.master_ip}:{args.master_port}"
    notice = Notice(f"rank {rank} is waiting for rank 0 at {place}")
    while True:
        with socket.socket(family, kind) as probe:
            probe.settimeout(3)
            try:
                return probe.connect(where)
            except OSError as error:
                reason = error.strerror or "no response"
        if time.monotonic() > deadline:
            raise UserError(
                f"rank {rank} timed out after {args.timeout:g} s connecting to rank 0 at {place} "
                f"({where[0]} for this machine; 127.x always means the machine itself): {reason}. "
                "Check that rank 0 is running with the same --master_ip and --master_port, and "
                "that this machine can reach that address (try `ping`)"
            )
        notice.show()
        time.sleep(0.2)


def join_roster(store, heartbeat, me, size, deadline):
    """Publish who `me` is, and return the workers of the run, by rank, once all have joined.

    Then the roster is closed. Raises StrayError for a worker that comes later, and UserError for a
    rank that is missing or was started twice, and for settings that differ.
    """
    store.append("roster", json.dumps(me) + "\n")
    notice = Notice()
    while True:
        members = joined(published(store, "roster"))
        check_alike(members)
        missing = sorted(set(range(size)) - {member["rank"] for member in members})
        if me["id"] not in [member["id"] for member in members]:
            raise StrayError(f"rank {me['rank']} is refused: {going_on(members)}")
        if not missing:
            return sorted(members, key=lambda member: member["rank"])
        heartbeat.check()
        ranks = ", ".join(map(str, missing))
        if time.monotonic() > deadline:
            raise UserError(
                f"rank {me['rank']} timed out waiting for rank {ranks} (of {size} workers). "
                "Start every rank with the same --master_ip, --master_port and --world_size; "
                "check the output of the missing ones; --timeout SECONDS waits longer"
            )
        notice.show(f"rank {me['rank']} is waiting for rank {ranks} of {size}")
        time.sleep(0.02)


def joined(members):
    """Those of the roster, in the order in which they came, up to the one that completed it.

    So all workers see the same roster, and none of them sees a stray.
    """
    size, ranks = members[0]["facts"]["--world_size"], set()
    for count, member in enumerate(members, 1):
        ranks.add(member["rank"])
        if ranks >= set(range(size)):
            return members[:count]
    return members


def going_on(members):
    """Which run a stray came upon: who is in it, and since when."""
    who = ", ".join(f"rank {m['rank']} on {m['host']}, process {m['pid']}" for m in members[:4])
    more = ", ..." if len(members) > 4 else ""
    since = max(member["since"] for member in members)
    return (
        f"a run of {len(members)} workers has been going on there since {since} ({who}{more}); "
        "wait for its end, end it, or choose another --master_port, on every rank"
    )


def exchange(store, heartbeat, topic, me, size, deadline):
    """Publish `me` under `topic`, wait for all ranks, and return what each published, by rank.

    Raises UserError for facts that differ, PeerLostError for a rank that does not come.
    """
    store.append(topic, json.dumps(me) + "\n")
    while len(members := published(store, topic)) < size:
        heartbeat.check()
        if time.monotonic() > deadline:
            raise PeerLostError("a rank is missing")
        time.sleep(0.02)
    check_alike(members)
    return sorted(members, key=lambda member: member["rank"])


def published(store, topic):
    """What the workers have published under a topic, in the order of arrival."""
    return [json.loads(line) for line in store.get(topic).decode().splitlines()]


def check_alike(members):
    """Raise UserError with every rank that was started twice, and every fact that differs."""
    if problems := differences(members):
        raise UserError("the workers were started with different settings:\n" + "\n".join(problems))


def differences(published):
    """A line for every rank that was started twice and every fact in which two workers differ."""
    first, seen, lines = published[0], {}, []
    for member in published:
        who = f"{member['host']}, process {member.get('pid')}"
        other = seen.setdefault(member["rank"], who)
        if other != who:
            lines.append(
                f"- rank {member['rank']} was started twice: on {other} and on {who}; give each "
                "worker a different --local_rank"
            )
        for name, value in member["facts"].items():
            if value != first["facts"].get(name):
                lines.append(
                    f"- {name} is {first['facts'].get(name)!r} at rank {first['rank']} "
                    f"({first['host']}) but {value!r} at rank {member['rank']} ({member['host']}); "
                    "start all workers with the same value"
                )
    return lines


def first_line(error):
    """The first line of an exception's message; C++ frames may follow it."""
    return (str(error) or repr(error)).splitlines()[0]


class Notice:
    """Reports on standard error what is being waited for: after 5 s, then every 15 s."""

    def __init__(self, text=""):
        self.text = text
        self.due = time.monotonic() + 5

    def show(self, text=""):
        if time.monotonic() > self.due:
            self.due = time.monotonic() + 15
            print(text or self.text, "...", file=sys.stderr, flush=True)
