"""--init_method file:///FOLDER/FILE: rank 0 leaves its address in a file on a shared folder.

The file is there as long as rank 0 can be reached at its address: from when its store listens until
it ends. One that names an address where nothing listens is left of a run that was killed.
"""

import json
import os
import socket
import time
from pathlib import Path

from common.errors import UserError
from common.workers.network import addresses, interface, route_to

SECONDS = 3.0  # for a worker to reach the address that it has read

_left: list[Path] = []  # files to remove at the end


def path_of(args) -> Path | None:
    """The file that --init_method names; None for another way to meet."""
    scheme, _, rest = args.init_method.partition("://")
    return Path(rest) if scheme == "file" and args.world_size > 1 else None


def meet(args, deadline: float, notice) -> None:
    """Set the master's address, where --init_method leaves it to a file."""
    if path_of(args) and args.local_rank == 0:
        choose_address(args)
    elif path_of(args):
        find_master(args, deadline, notice)


def choose_address(args) -> None:
    """On rank 0: set the master's address and port to this machine's, and to a free one."""
    check_folder(args)
    if "GLOO_SOCKET_IFNAME" in os.environ:
        args.master_ip = interface(args)[0]
    else:
        args.master_ip = own_address()
    family = socket.AF_INET6 if ":" in args.master_ip else socket.AF_INET
    with socket.create_server((args.master_ip, 0), family=family) as free:
        args.master_port = free.getsockname()[1]


def own_address() -> str:
    """This machine's address on its way out, or any that is not loopback; nothing is sent."""
    try:
        return route_to("192.0.2.1")[0]  # kept for examples by RFC 5737
    except OSError:
        others = (each for each in addresses() if "." in each and not each.startswith("127."))
        return next(others, "127.0.0.1")


def check_folder(args) -> None:
    """Raise UserError where the file's folder does not exist."""
    path = path_of(args)
    if path and not path.parent.is_dir():
        raise UserError(
            f"--init_method {args.init_method}: there is no folder {path.parent} on this machine; "
            "give a file in a folder that all workers share"
        )


def publish(args) -> None:
    """On rank 0, whose store listens: write the file; raises UserError where there is one."""
    path = path_of(args)
    assert path, "there is no file to write"
    facts = {"address": args.master_ip, "port": args.master_port, "host": socket.gethostname()}
    facts |= {"pid": os.getpid(), "since": time.strftime("%Y-%m-%d %H:%M:%S %z")}
    part = path.with_name(f"{path.name}.{socket.gethostname()}.{os.getpid()}")
    try:
        part.write_text(json.dumps(facts) + "\n")
        os.link(part, path)  # fails where the file is there, unlike a renaming
    except FileExistsError:
        raise UserError(f"rank 0 is refused: {why_taken(path)}") from None
    except OSError as error:
        raise UserError(
            f"--init_method {args.init_method}: {error.strerror}; give a file in a folder that "
            "all workers can write to"
        ) from None
    finally:
        part.unlink(missing_ok=True)
    _left.append(path)


def why_taken(path: Path) -> str:
    """What a file that is there already is from, and what to do."""
    facts = read(path)
    if not facts:
        return f"{path} is there and was not written by a run; choose another file"
    who = f"{facts['host']}, process {facts['pid']}, since {facts['since']}"
    if answers(facts):
        return (
            f"{path} is the file of another run, or of another rank 0 ({who}); wait for its end, "
            "or choose another file, on every rank"
        )
    return f"{path} is left of a run that was killed ({who}); delete it, and start all ranks again"


def find_master(args, deadline: float, notice) -> None:
    """On other ranks: wait for the file, and set the master's address and port to what it names.

    Raises UserError for a file that is left of an earlier run, and at the deadline.
    """
    path, given_up = path_of(args), 0.0
    assert path, "there is no file to read"
    check_folder(args)
    while True:
        facts = read(path)
        if facts and answers(facts):
            args.master_ip, args.master_port = facts["address"], facts["port"]
            return
        if facts:
            given_up = given_up or time.monotonic() + SECONDS
            if time.monotonic() > given_up:
                raise UserError(
                    f"rank {args.local_rank} cannot reach {facts['address']}:{facts['port']}, "
                    f"which {path} names: {why_taken(path)}"
                )
        if time.monotonic() > deadline:
            raise UserError(
                f"rank {args.local_rank} timed out after {args.timeout:g} s waiting for {path}, "
                "which rank 0 writes; start rank 0 with the same --init_method, and check that "
                "the workers share that folder"
            )
        notice.show(f"rank {args.local_rank} is waiting for rank 0 to write {path}")
        time.sleep(0.1)


def read(path: Path) -> dict:
    """What a file says; {} where there is none, or where it is something else."""
    try:
        facts = json.loads(path.read_text())
        return facts if {"address", "port", "host", "pid", "since"} <= set(facts) else {}
    except (OSError, ValueError, TypeError):
        return {}


def answers(facts: dict) -> bool:
    """Whether something listens at the address that a file names."""
    try:
        socket.create_connection((facts["address"], facts["port"]), SECONDS).close()
    except OSError:
        return False
    return True


def remove() -> None:
    """Remove the file that this process has written."""
    while _left:
        _left.pop().unlink(missing_ok=True)
