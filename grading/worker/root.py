"""Builds a sandbox's root folder from a list of what may be seen; nothing else is in it (Linux)."""

import os
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from grading.worker.libc import (
    CLONE_NEWNS,
    MNT_DETACH,
    MS_BIND,
    MS_NODEV,
    MS_NOEXEC,
    MS_NOSUID,
    MS_PRIVATE,
    MS_RDONLY,
    MS_REC,
    MS_REMOUNT,
    libc,
    mount,
)

SYSTEM = [f"/{top}{name}" for top in ("", "usr/") for name in ("bin", "sbin", "lib", "lib64")]
SYSTEM += ["/usr/share", "/etc/ld.so.cache", "/etc/localtime", "/nix/store"]
SYSTEM += ["/sys/devices/system/cpu"]  # how many cores there are
DEVICES = ("null", "zero", "full", "random", "urandom")
LINKS = {"fd": "/proc/self/fd", "stdin": "fd/0", "stdout": "fd/1", "stderr": "fd/2"}
TEMPORARY = ("/tmp", "/dev/shm")  # file systems in memory, empty at first
TEMPORARY_BYTES = 256 * 2**20  # size of each
FILES = {  # path -> content; USER is replaced
    "/etc/passwd": "student:x:USER:USER::/tmp:/bin/sh\n",
    "/etc/group": "student:x:USER:\n",
    "/etc/hosts": "127.0.0.1 localhost sandbox\n",
    "/etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n",
}


def enter_root(place: Path, writable: Sequence[Path], readable: Iterable[Path], user: int) -> None:
    """Make a new root folder over the folder `place`, and move into it.

    It shows the system's libraries, Python's and the `readable` folders read-only, the `writable`
    ones, few devices, this namespace's processes, and empty temporary folders; all at the paths
    that they have outside. Raises OSError where the system does not allow it.
    """
    libc("unshare", CLONE_NEWNS)
    mount(None, "/", None, MS_REC | MS_PRIVATE)
    allowed = [(path, False) for path in without_inner([*system_parts(), *readable])]
    allowed += [(path, True) for path in writable]
    opened = [(path, os.open(path, os.O_PATH), may_write) for path, may_write in allowed]
    mount("none", place, "tmpfs", MS_NOSUID | MS_NODEV, "size=1m,mode=755")
    root = place / "root"  # not the file system's own: then it could make user namespaces
    fill_root(root, user)
    for path, descriptor, may_write in opened:
        bind(f"/proc/self/fd/{descriptor}", inner(root, path), 0 if may_write else MS_RDONLY)
        os.close(descriptor)
    for folder in (inner(root, Path("/dev")), place):
        mount(None, folder, None, MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID | MS_NODEV)
    os.chdir(place)
    libc("pivot_root", b".", b".")
    libc("umount2", b".", MNT_DETACH)
    os.chroot("/root")
    os.chdir("/")


def system_parts() -> list[Path]:
    """The system's libraries and programs, Python's and its packages, where they are."""
    parts = [Path(path) for path in SYSTEM]
    for prefix in {sys.prefix, sys.base_prefix, sys.exec_prefix}:
        parts += [Path(prefix, name) for name in ("bin", "lib", "lib64", "pyvenv.cfg")]
    parts += [Path(path) for path in (os.path.dirname(os.__file__), *library_paths())]
    return [path for path in parts if path.exists()]


def library_paths() -> list[str]:
    """The entries of sys.path that hold libraries, and not the kit."""
    return [path for path in sys.path if path.endswith(("-packages", ".zip", "lib-dynload"))]


def without_inner(paths: Sequence[Path]) -> list[Path]:
    """The paths, and what they are links to, without those that lie in another one."""
    every = sorted({each for path in paths for each in (path, path.resolve())})
    kept: list[Path] = []
    for path in every:
        if not any(path.is_relative_to(outer) for outer in kept):
            kept.append(path)
    return kept


def fill_root(root: Path, user: int) -> None:
    """Make a root folder's own files: devices, processes, temporary folders, /etc."""
    root.mkdir()
    inner(root, Path("/dev")).mkdir()
    mount("none", root / "dev", "tmpfs", MS_NOSUID | MS_NOEXEC, "size=64k,mode=755")
    for path in TEMPORARY:
        size = f"size={TEMPORARY_BYTES},nr_inodes=20k,mode=1777"
        inner(root, Path(path)).mkdir()
        mount("none", inner(root, Path(path)), "tmpfs", MS_NOSUID | MS_NODEV, size)
    for name in DEVICES:
        bind(f"/dev/{name}", root / "dev" / name, MS_NOEXEC, nodev=0)
    for name, target in LINKS.items():
        (root / "dev" / name).symlink_to(target)
    (root / "proc").mkdir()
    mount("proc", root / "proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, "hidepid=2")
    (root / "etc").mkdir()
    for path, content in FILES.items():
        inner(root, Path(path)).write_text(content.replace("USER", str(user)))


def bind(source: str, target: Path, flags: int, nodev: int = MS_NODEV) -> None:
    """Show a file or folder at `target` too, without what is mounted inside it."""
    if os.path.isdir(source):
        target.mkdir(parents=True, exist_ok=True)
    else:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.touch()
    mount(source, target, None, MS_BIND)
    mount(None, target, None, MS_REMOUNT | MS_BIND | MS_NOSUID | nodev | flags)


def inner(root: Path, path: Path) -> Path:
    """An absolute path's place below the root."""
    return root / path.relative_to("/")
