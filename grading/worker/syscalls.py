"""Forbids system calls that no training needs and that attacks use (Linux, for good).

They reach into other processes or the kernel, or hold memory that belongs to no process, which
`grading.sandbox` could not count.
"""

import ctypes
import os
import platform
import struct

from grading.worker.libc import PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, libc, prctl

SECCOMP_MODE_FILTER, ALLOW, REFUSE = 2, 0x7FFF0000, 0x00050000  # <linux/seccomp.h>
LOAD, IF_EQUAL, IF_GREATER_EQUAL, RETURN = 0x20, 0x15, 0x35, 0x06  # <linux/filter.h>
NUMBER_AT, ARCHITECTURE_AT = 0, 4  # bytes from the start of what the filter sees
EPERM = 1
X32 = 0x40000000  # calls from here on are those of another ABI of x86-64
# Machine -> its number in <linux/audit.h>, and its place in the pairs of CALLS.
MACHINES = {"x86_64": (0xC000003E, 0), "aarch64": (0xC00000B7, 1)}
CALLS = {  # name -> its number on each machine
    "memfd_create": (319, 279),
    "memfd_secret": (447, 447),
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "unshare": (272, 97),
    "setns": (308, 268),
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425),
    "open_by_handle_at": (304, 265),
    "kcmp": (312, 272),
    "pidfd_getfd": (438, 438),
    "fsopen": (430, 430),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
}


def forbid_calls() -> None:
    """Make CALLS fail with EPERM in this process and its children; OSError if that cannot be."""
    prctl(PR_SET_NO_NEW_PRIVS)
    if platform.machine() not in MACHINES:
        raise OSError(f"the numbers of system calls on {platform.machine()} are not known")
    architecture, place = MACHINES[platform.machine()]
    code = program(architecture, [numbers[place] for numbers in CALLS.values()])
    buffer = ctypes.create_string_buffer(code)
    length_and_place = struct.pack("HxxxxxxP", len(code) // 8, ctypes.addressof(buffer))
    filters = ctypes.create_string_buffer(length_and_place)
    libc("prctl", PR_SET_SECCOMP, ctypes.c_ulong(SECCOMP_MODE_FILTER), filters)


def program(architecture: int, numbers: list[int]) -> bytes:
    """The filter, in the kernel's code: refuse these calls and other ABIs, allow the rest."""
    steps = len(numbers)
    code = [
        (LOAD, 0, 0, ARCHITECTURE_AT),
        (IF_EQUAL, 0, steps + 3, architecture),  # else refuse
        (LOAD, 0, 0, NUMBER_AT),
        (IF_GREATER_EQUAL, steps + 1, 0, X32),
        *((IF_EQUAL, steps - at, 0, number) for at, number in enumerate(numbers)),
        (RETURN, 0, 0, ALLOW),
        (RETURN, 0, 0, REFUSE | EPERM),
    ]
    return b"".join(struct.pack("HBBI", *step) for step in code)


def is_refused(call: str, *args: int) -> bool:
    """Whether this process may not make a system call, of CALLS."""
    library = ctypes.CDLL(None, use_errno=True)
    number = CALLS[call][MACHINES[platform.machine()][1]]
    result = library.syscall(ctypes.c_long(number), *map(ctypes.c_long, args))
    if result >= 0 and call == "memfd_create":
        os.close(result)
    return result < 0 and ctypes.get_errno() == EPERM
