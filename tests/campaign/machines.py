"""The machines of the workers: nodes of the network lab, or this machine where there is no lab."""

import ctypes
import os
import signal
import subprocess
import sys
from pathlib import Path

from cluster import lab_network
from cluster.lab_network import Node, ip, run_command

MARK = "CAMPAIGN_IN_LAB"  # in the environment of the process in the lab
INSIDE = MARK in os.environ
CLONE_NEWNET = 0x40000000  # <linux/sched.h>


def enter_lab(module: str, argv: list[str]) -> None:
    """Become `python -m module argv` in namespaces of its own; return where that cannot be."""
    if reason := lab_network.missing():
        print(f"campaign: skipped here: cut links and full disks, as {reason}")
        return
    command = lab_network.inside([sys.executable, "-m", module, *argv], foreground=True)
    os.execvpe(command[0], command, {**os.environ, MARK: "1"})


def build(count: int) -> None:
    """Set up the nodes. As the lab's first process, this one must be told to heed SIGTERM."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    lab_network.build(["1gbit"] * count)


def address(number: int) -> str:
    """The address of a node."""
    return Node(number).address if INSIDE else "127.0.0.1"


def enter(number: int) -> None:
    """Move this thread, and all that it starts, to a node of the lab."""
    namespace = os.open(f"/run/netns/{Node(number).name}", os.O_RDONLY)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(namespace, CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    os.close(namespace)


def cut(number: int) -> None:
    """Take a node's link down, from the node."""
    enter_bridge = ["nsenter", "--target", "1", "--net"]  # the lab's first process stays there
    subprocess.run([*enter_bridge, "ip", "link", "set", Node(number).port, "down"], check=True)


def join(number: int) -> None:
    """Take a node's link up again."""
    ip("link", "set", Node(number).port, "up")


def mount_small_disk(folder: Path) -> None:
    """Put a file system of 32 MiB at a folder."""
    run_command("mount", "-t", "tmpfs", "-o", "size=32m", "small", str(folder))


def unmount(folder: Path) -> None:
    """Take it away, with all that is in it."""
    run_command("umount", "--lazy", str(folder))
