"""Isolates a submission from other users' files, the network and the kit itself (Linux, root)."""

import contextlib
import ctypes
import fcntl
import os
import shutil
import socket
import stat
import struct
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

CLONE_NEWNS, CLONE_NEWIPC, CLONE_NEWNET = 0x00020000, 0x08000000, 0x40000000
MS_RDONLY, MS_REMOUNT, MS_BIND, MS_REC, MS_PRIVATE = 1, 32, 4096, 16384, 1 << 18
MS_NOSUID, MS_NODEV = 2, 4
PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS = 36, 38
FIRST_USER = 61000  # users from here on have no name and no files
KIT = Path(__file__).resolve().parents[2]
LINUX = sys.platform == "linux"


def libc(function: str, *args) -> None:
    """Call a function of the C library; OSError if it fails."""
    library = ctypes.CDLL(None, use_errno=True)
    if getattr(library, function)(*args) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{function}: {os.strerror(number)}")


def isolate(
    writable: Sequence[Path], readable: Iterable[Path], hidden: Iterable[Path], size: int
) -> tuple[int | None, str]:
    """Give this process and its children their own user, network and view of the files.

    `writable` folders become the user's, `readable` ones stay readable; the `hidden` folders, the
    kit and all other temporary folders become empty, of at most `size` bytes. Returns the user's
    number, or None, and what was achieved, in words.
    """
    if LINUX:
        with contextlib.suppress(OSError):
            libc("prctl", PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)  # orphans become our children
    if not LINUX or os.geteuid() != 0:
        return None, "limits only (the grader does not run as root, or not on Linux)"
    done = []
    with contextlib.suppress(OSError):  # a container may not allow it
        libc("unshare", CLONE_NEWNET)
        raise_loopback()
        done.append("no network except between its workers")
    with contextlib.suppress(OSError):
        libc("unshare", CLONE_NEWNS | CLONE_NEWIPC)
        hide_paths(writable, readable, hidden, size)
        done.append("the kit, its results and other submissions hidden")
    barred = [path for path in libraries() if closed(path)]
    if barred and len(done) < 2:
        return None, f"the grader's own user, as others cannot enter {closed(barred[0])}"
    user = FIRST_USER + os.getpid() % 4000
    for folder in writable:
        hand_over(folder, user)
    return user, ", ".join(["a separate user", *done])


def libraries() -> list[Path]:
    """The folders that hold Python itself and its packages."""
    return sorted({Path(sys.prefix).resolve(), Path(sys.base_prefix).resolve()})


def closed(path: Path) -> Path | None:
    """The topmost folder on the way to `path` that other users cannot enter; None if all can."""
    folders = [path, *path.parents][::-1]
    return next((each for each in folders if not each.stat().st_mode & stat.S_IXOTH), None)


def raise_loopback() -> None:
    """Bring the new network's only interface up."""
    siocgifflags, siocsifflags, iff_up = 0x8913, 0x8914, 1
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        request = struct.pack("16sh14x", b"lo", 0)
        (flags,) = struct.unpack("16xh14x", fcntl.ioctl(any_socket, siocgifflags, request))
        fcntl.ioctl(any_socket, siocsifflags, struct.pack("16sh14x", b"lo", flags | iff_up))


def hide_paths(
    writable: Sequence[Path], readable: Iterable[Path], hidden: Iterable[Path], size: int
) -> None:
    """Mount empty file systems over what is hidden, and mount again what must be seen."""
    libc("mount", None, b"/", None, MS_REC | MS_PRIVATE, None)
    kept = [(Path(path), True) for path in writable]
    kept += [(Path(path), False) for path in (*readable, *libraries())]
    opened = [(path, os.open(path, os.O_PATH), writable) for path, writable in kept]
    kit = [p for p in KIT.iterdir() if p.is_dir() and not Path(sys.prefix).is_relative_to(p)]
    covered = {Path("/tmp").resolve(), Path("/var/tmp").resolve(), Path("/dev/shm"), *kit}
    covered |= {Path(path).resolve() for path in hidden}
    covered |= {barred for path in libraries() if (barred := closed(path))}
    mounted = [p for p in covered if p.is_dir() and covered.isdisjoint(p.parents)]
    for path in mounted:
        bounds = f"size={size},mode={'1777' if path.name in ('tmp', 'shm') else '755'}"
        libc("mount", b"none", bytes(path), b"tmpfs", MS_NOSUID | MS_NODEV, bounds.encode())
    for path, descriptor, writable in opened:
        if any(path.is_relative_to(each) for each in mounted):
            path.mkdir(parents=True, exist_ok=True)
            source = f"/proc/self/fd/{descriptor}".encode()
            libc("mount", source, bytes(path), None, MS_BIND | MS_REC, None)
            if not writable:
                flags = MS_REMOUNT | MS_BIND | MS_RDONLY
                libc("mount", None, bytes(path), None, flags, None)
        os.close(descriptor)


def hand_over(folder: Path, user: int) -> None:
    """Make the user the owner of the folder and everything in it."""
    for path in (folder, *Path(folder).rglob("*")):
        shutil.chown(path, user, user) if not path.is_symlink() else None


def drop_privileges(user: int | None) -> None:
    """Become the user for good, if there is one."""
    if user is None:
        return
    os.setgroups([])
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)
    libc("prctl", PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
