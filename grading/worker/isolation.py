"""Gives a submission's processes their own user, network, processes and files (Linux, root)."""

import contextlib
import fcntl
import os
import resource
import socket
import stat
import struct
import sys
from collections.abc import Iterable
from pathlib import Path

from grading.plan import Limits
from grading.worker.libc import (
    CLONE_NEWIPC,
    CLONE_NEWNET,
    CLONE_NEWPID,
    CLONE_NEWUTS,
    PR_SET_NO_NEW_PRIVS,
    libc,
    prctl,
)
from grading.worker.root import system_parts
from grading.worker.syscalls import forbid_calls

FIRST_USER = 61000  # users from here on have no name and no files
USERS = 4000
SHARED_PAGES = 16384  # of 4 KiB: System V shared memory of one run, which no process's size shows
UNUSED_BYTES = 16 * 2**30  # of address space that torch maps without using it
CLEANUP_SECONDS = 5  # of a core beyond the limit, for the process to end by itself
LINUX = sys.platform == "linux"


def separate() -> None:
    """Give this process a network and other things of its own, and its children their own process
    numbers; OSError where the system does not allow it.
    """
    libc("unshare", CLONE_NEWPID | CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS)
    raise_loopback()
    socket.sethostname("sandbox")
    Path("/proc/sys/kernel/shmall").write_text(str(SHARED_PAGES))


def raise_loopback() -> None:
    """Bring the new network's only interface up."""
    siocgifflags, siocsifflags, iff_up = 0x8913, 0x8914, 1
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        request = struct.pack("16sh14x", b"lo", 0)
        (flags,) = struct.unpack("16xh14x", fcntl.ioctl(any_socket, siocgifflags, request))
        fcntl.ioctl(any_socket, siocsifflags, struct.pack("16sh14x", b"lo", flags | iff_up))


def new_user(contained: bool) -> int | None:
    """The number of a user for the submission; None if this process cannot make others.

    Outside of its own root folder, a user must be able to enter the folders of Python's libraries.
    """
    if not LINUX or os.geteuid() != 0:
        return None
    if not contained and any(closed(path) for path in system_parts()):
        return None
    return FIRST_USER + os.getpid() % USERS


def closed(path: Path) -> bool:
    """Whether other users cannot enter a folder on the way to `path`."""
    return any(not each.stat().st_mode & stat.S_IXOTH for each in path.resolve().parents)


def hand_over(folders: Iterable[Path], user: int) -> None:
    """Make the user the owner of the folders and everything in them."""
    for folder in folders:
        os.chown(folder, user, user)
        for here, inner, files in os.walk(folder):
            for name in (*inner, *files):
                os.lchown(os.path.join(here, name), user, user)


def drop_privileges(user: int | None) -> None:
    """Become the user for good, if there is one, and lose what no training needs."""
    if user is not None:
        os.setgroups([])
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)
    if LINUX:
        with contextlib.suppress(OSError):  # `inside` reports what was not achieved
            prctl(PR_SET_NO_NEW_PRIVS)
            forbid_calls()


def limit(limits: Limits, user: int | None) -> None:
    """Limit this process and its children."""
    bounds = {
        resource.RLIMIT_AS: UNUSED_BYTES + limits.memory,
        resource.RLIMIT_FSIZE: limits.file,
        resource.RLIMIT_CPU: int(limits.seconds) + CLEANUP_SECONDS,
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_NOFILE: 1024,
    }
    if user is not None:  # a separate user: otherwise all processes of this user would count
        bounds[resource.RLIMIT_NPROC] = limits.processes
    for which, most in bounds.items():
        hard = resource.getrlimit(which)[1]
        most = most if hard == resource.RLIM_INFINITY else min(most, hard)
        with contextlib.suppress(ValueError, OSError):  # macOS lacks some of them
            resource.setrlimit(which, (most, most))
