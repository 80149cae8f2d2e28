"""Functions of the C library that Python does not have, as errors of the system where they fail."""

import ctypes
import os

MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC = 1, 2, 4, 8  # <sys/mount.h>
MS_REMOUNT, MS_BIND, MS_REC, MS_PRIVATE = 32, 4096, 16384, 1 << 18
MNT_DETACH = 2
CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWIPC = 0x00020000, 0x04000000, 0x08000000  # <sched.h>
CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = 0x10000000, 0x20000000, 0x40000000
PR_SET_PDEATHSIG, PR_SET_SECCOMP = 1, 22  # <linux/prctl.h>
PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS = 36, 38


def libc(function: str, *args) -> None:
    """Call a function of the C library; OSError if it fails, or if this library lacks it."""
    library = ctypes.CDLL(None, use_errno=True)
    try:
        failed = getattr(library, function)(*args) != 0
    except AttributeError:
        raise OSError(f"this system's C library has no {function}") from None
    if failed:
        number = ctypes.get_errno()
        raise OSError(number, f"{function}: {os.strerror(number)}")


def prctl(option: int, value: int = 1) -> None:
    """Set an option of this process; OSError if it cannot be set."""
    libc("prctl", option, *(ctypes.c_ulong(each) for each in (value, 0, 0, 0)))


def mount(source: object, target: object, kind: str | None, flags: int, data: str = "") -> None:
    """Mount a file system, or change a mount; OSError if that is refused."""
    texts = (None if text is None else os.fsencode(str(text)) for text in (source, target, kind))
    libc("mount", *texts, ctypes.c_ulong(flags), data.encode() or None)
