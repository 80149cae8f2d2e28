"""The worker processes of a run: started, read and signaled, each with its children."""

import contextlib
import ctypes
import functools
import os
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from cluster.screen import STDOUT, Screen, pseudo_terminal, relay_lines, relay_live

PR_SET_PDEATHSIG, PR_SET_NAME = 1, 15  # <linux/prctl.h>
LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None
LINES_KEPT = 20  # of each stream, unless the run is quiet: then all
UNFINISHED = ": TODO("  # in the line of a worker that has reached a part still to be written


@dataclass(eq=False)
class Worker:
    """One process of the run, with its output: every line if quiet, else the last ones."""

    rank: int
    process: subprocess.Popen  # or a cluster.template.Forked
    stdout: deque[str]
    stderr: deque[str]
    started: float = field(default_factory=time.monotonic)
    ended: float = float("inf")
    sent: signal.Signals | None = None  # the launcher's last signal to it

    @property
    def code(self) -> int | None:
        """Its exit code, or minus the signal that ended it."""
        return self.process.returncode

    def outcome(self, last_lines: int) -> str:
        """How it ended and, if it failed, its last lines on stderr."""
        code = self.code or 0
        how = f"exit code {code}" if code >= 0 else signal.Signals(-code).name
        how += f" (the launcher sent {self.sent.name})" if self.sent else ""
        errors = [line for line in self.stderr if line.strip()] if code else []
        return "\n      ".join([how, *errors[len(errors) - last_lines :]])


def spawn(command: Sequence[str], **how) -> subprocess.Popen:
    """Start a process in its own session, which ends with this one."""
    end = functools.partial(die_with, os.getpid()) if LIBC else None
    return subprocess.Popen(command, start_new_session=True, preexec_fn=end, **how)


def start(
    command: list[str], rank: int, env: dict[str, str], quiet: bool, begin: Callable = spawn
) -> Worker:
    """Start a worker by `begin`; rank 0's errors go to a terminal if ours do."""
    stdin, stdout, stderr, ours = subprocess.DEVNULL, subprocess.PIPE, subprocess.PIPE, None
    if rank == 0 and not quiet:
        stdin = None  # for a debugger
        if os.isatty(2):  # we must read the errors, yet tqdm must see a terminal
            ours, stderr = pseudo_terminal()
            stdout = stderr if os.isatty(1) else stdout  # as one: tqdm.write needs their order
    process = begin(command, env=env, stdin=stdin, stdout=stdout, stderr=stderr)
    if ours is not None:
        os.close(stderr)
        process.stderr = os.fdopen(ours, "rb", buffering=0)
    keep = None if quiet else LINES_KEPT
    return Worker(rank, process, deque(maxlen=keep), deque(maxlen=keep))


def die_with(launcher: int) -> None:
    """In the new worker: be killed when the thread that forked it ends, at once if it has ended."""
    assert LIBC, "start() asks for it on Linux only"
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != launcher:
        os._exit(1)


def name_process(name: str) -> None:
    """Give this process the name that `ps -e`, top and pgrep show for it."""
    assert LIBC, "forked workers are on Linux only"
    LIBC.prctl(PR_SET_NAME, name.encode())


def attend(worker: Worker, screen: Screen, put: Callable[[Worker], None]) -> list[threading.Thread]:
    """Start the threads that read a worker's output and `put` it when it has ended."""
    process, live = worker.process, worker.rank == 0 and not screen.quiet
    show = functools.partial(screen.line, prefix=f"[rank {worker.rank}] " if worker.rank else "")

    def show_error(line: str) -> None:
        """All workers reach the same missing part: rank 0 reports it, or the summary does."""
        if UNFINISHED not in line:
            show(line)

    jobs: list[tuple] = [(await_end, worker, put)]
    if live:
        jobs.append((relay_live, process.stderr, worker.stderr, screen.write))
    else:
        jobs.append((relay_lines, process.stderr, worker.stderr, show_error))
    if process.stdout:
        out = functools.partial(show, stream=STDOUT)
        jobs.append((relay_lines, process.stdout, worker.stdout, out))
    threads = [threading.Thread(target=job, args=args, daemon=True) for job, *args in jobs]
    for thread in threads:
        thread.start()
    return threads


def await_end(worker: Worker, put: Callable[[Worker], None]) -> None:
    """Report when a worker has ended, and end its children."""
    worker.process.wait()
    worker.ended = time.monotonic()
    put(worker)
    while signal_group(worker, 0) and time.monotonic() < worker.ended + 1:
        time.sleep(0.05)
    signal_group(worker, signal.SIGKILL)


def signal_group(worker: Worker, number: int) -> bool:
    """Signal a worker and its children: whether there are any (macOS refuses where all ended)."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(worker.process.pid, number)
        return True
    return False
