"""Verifies from inside a sandbox what it keeps a submission from; only this is reported.

Each check tries what it is about, as the submission's user, in a process of its own.
"""

import errno
import json
import os
import resource
import socket
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

from grading.plan import Run
from grading.worker.libc import CLONE_NEWUSER
from grading.worker.root import SYSTEM, system_parts
from grading.worker.syscalls import is_refused

KIT = Path(__file__).resolve().parents[2]
PRIVATE = ("/run", "/home", "/root", "/var", "/mnt", "/media", "/srv", "/opt", "/boot")
FAR = "203.0.113.1"  # an address for documentation, which nobody has


def separate_user(_: Run) -> bool:
    """This user is not the grader's, and cannot become it."""
    with suppress(OSError):
        os.setuid(0)
    return min(os.getresuid()) > 0 and min(os.getresgid()) > 0 and not os.getgroups()


def only_own_files(run: Run) -> bool:
    """Folders outside hold nothing but the way to what this run may see."""
    shown = {Path(path) for path in (run.folder, *run.writable, *run.readable)}
    shown |= set(system_parts()) | {Path(path) for path in SYSTEM}
    shown |= {path.resolve() for path in shown}
    ways = {outer for path in shown for outer in path.parents}
    private = {Path(path) for path in (*PRIVATE, *run.hidden, KIT, run.observed)}
    private |= {outer for path in private for outer in path.parents} - {Path("/")}
    private = {path for path in private if not any(path.is_relative_to(one) for one in shown)}
    return all(found in shown | ways for path in private for found in entries(path))


def entries(folder: Path) -> Iterable[Path]:
    """What can be seen in a folder, but for what every sandbox has."""
    with suppress(OSError):
        return [path for path in folder.iterdir() if str(path) not in ("/tmp", "/dev", "/proc")]
    return []


def only_own_writable(run: Run) -> bool:
    """No file can be made in the folders that are to be read only."""
    return not any(can_write(path) for path in (Path("/"), *system_parts(), *run.readable))


def can_write(folder: Path) -> bool:
    """Whether a file can be made in a folder."""
    try:
        (folder / "self-test").touch(exist_ok=False)
        (folder / "self-test").unlink()
    except OSError:
        return False
    return True


def only_own_processes(_: Run) -> bool:
    """No process is seen but this one, not even the one that started it."""
    seen = {int(name) for name in os.listdir("/proc") if name.isdigit()}
    return seen == {os.getpid()} and os.getppid() == 1


def no_network(_: Run) -> bool:
    """There is only the loopback, and no way to an address outside."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as outside:
        code = outside.connect_ex((FAR, 80))  # finds a route, and sends nothing
    return code == errno.ENETUNREACH and [name for _, name in socket.if_nameindex()] == ["lo"]


def no_dangerous_calls(_: Run) -> bool:
    """Calls into the kernel and into other processes are refused."""
    return is_refused("memfd_create", 0, 0) and is_refused("unshare", CLONE_NEWUSER)


def limited(run: Run) -> bool:
    """Sizes and times are limited."""
    file, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    return 0 < file <= run.limits.file


CHECKS: dict[str, Callable[[Run], bool]] = {
    "a separate user": separate_user,
    "no network except between its workers": no_network,
    "the kit, its results and other submissions hidden": only_own_files,
    "nothing writable but its own copies": only_own_writable,
    "other processes hidden": only_own_processes,
    "dangerous system calls refused": no_dangerous_calls,
    "limits on time, memory and files": limited,
}


def verify(run: Run) -> str:
    """What holds in this process, as JSON of a list of CHECKS' names."""
    return json.dumps([name for name, check in CHECKS.items() if holds(check, run)])


def holds(check: Callable[[Run], bool], run: Run) -> bool:
    """Whether a check succeeds; one that cannot be made has not."""
    try:
        return sys.platform == "linux" and check(run)
    except (OSError, ValueError, KeyError, AttributeError):
        return False


def in_words(verified: str) -> str:
    """The report's line on a sandbox, from what `verify` wrote."""
    names = [name for name in CHECKS if name in json.loads(verified or "[]")]
    missing = [name for name in CHECKS if name not in names]
    text = f"verified from inside: {', '.join(names) or 'nothing'}"
    return f"{text}; NOT: {', '.join(missing)}" if missing else text
