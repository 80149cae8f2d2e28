"""What workers print, on one screen: whole lines with a prefix, and rank 0's progress bar live."""

import contextlib
import fcntl
import os
import pty
import select
import sys
import termios
import threading
import tty
from collections import deque
from collections.abc import Callable
from typing import BinaryIO, TextIO

STDOUT = sys.__stdout__ or sys.stdout  # the process's own, whatever stands in for them
STDERR = sys.__stderr__ or sys.stderr


class Screen:
    """Our stdout and stderr, to which one thread at a time writes."""

    def __init__(self, quiet: bool) -> None:
        self.quiet = quiet
        self.lock = threading.RLock()
        self.mid_line = False
        sys.stdout.flush()  # what the caller printed comes before what the workers print

    def line(self, text: str, prefix: str = "", stream: TextIO = STDERR) -> None:
        """Write a separate line, below a progress bar if there is one."""
        with self.lock:
            if self.mid_line:
                self.write(b"\n")
            self.write(f"{prefix}{text}\n".encode(), stream)

    def write(self, chunk: bytes, stream: TextIO = STDERR) -> None:
        """Write bytes as they are, in whatever encoding a worker chose."""
        if chunk and not self.quiet:
            with self.lock:
                stream.buffer.write(chunk)
                stream.buffer.flush()
                self.mid_line = not chunk.endswith(b"\n")


def relay_lines(source: BinaryIO, kept: deque[str], show: Callable[[str], None]) -> None:
    """Show and keep whole lines."""
    with source, contextlib.suppress(OSError):
        for line in source:
            kept.append(text(line))
            show(kept[-1])


def relay_live(source: BinaryIO, kept: deque[str], show: Callable[[bytes], None]) -> None:
    """Show whole lines, and the start of one if it is a progress bar or if no more comes."""
    recent = start = b""
    with source, contextlib.suppress(OSError):  # EIO: the worker's end of a terminal is closed
        while chunk := os.read(source.fileno(), 65536):
            lines, newline, start = (start + chunk).rpartition(b"\n")
            show(lines + newline)
            if b"\r" in start or not select.select([source], [], [], 0.2)[0]:
                show(start)
                start = b""
            recent = (recent + chunk)[-8192:]
    show(start)
    kept.extend(map(text, recent.split(b"\n")))


def text(line: bytes) -> str:
    """A line as a terminal ends up showing it: a progress bar's last state."""
    return line.decode(errors="replace").rstrip("\r\n").rpartition("\r")[2]


def pseudo_terminal() -> tuple[int, int]:
    """Our end and the worker's end of a terminal of our size that changes no byte."""
    ours, theirs = pty.openpty()
    tty.setraw(theirs)
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, fcntl.ioctl(2, termios.TIOCGWINSZ, bytes(8)))
    return ours, theirs
