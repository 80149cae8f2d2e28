"""Runs a submission's workers: isolated, limited, and all of them killed at the deadline."""

import contextlib
import multiprocessing
import os
import signal
import tempfile
import time
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

from grading.plan import STACK_SIGNAL, Ended, Limits, Run
from grading.worker.isolation import isolate

import psutil

FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["grading.worker.preload"])
IDLE_SHARE = 0.02  # of a core: a worker that uses less only sends heartbeats
POLL_SECONDS = 0.1  # between looks at the workers
STACK_SECONDS = 2.0  # for the workers to write their stacks
EMPTY_BYTES = 2**30  # size of the empty file systems over what is hidden


def run_workers(run: Run) -> Ended:
    """Run all workers to their end; none of them outlives this call.

    Raises RuntimeError if the workers could not be started or watched.
    """
    ours, theirs = FORKS.Pipe()
    process = FORKS.Process(target=job, args=(run, theirs), daemon=True)
    process.start()
    theirs.close()
    try:
        ended = ours.recv()
    except EOFError:
        raise RuntimeError(f"the job died (exit code {process.exitcode})") from None
    finally:
        ours.close()  # the job sees this, and kills all workers
        process.join()
    if isinstance(ended, str):
        raise RuntimeError(ended)
    return ended


def job(run: Run, pipe: Connection) -> None:
    """In a separate process: start the workers, watch them, and send how they ended."""
    from grading.worker import worker  # loaded already by the fork server, which alone has torch

    os.setsid()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    workers = []
    try:
        run.observed.mkdir(parents=True, exist_ok=True, mode=0o700)
        files = [open_files(run.observed, rank) for rank in range(len(run.commands))]
        hidden = (run.observed, *run.hidden)
        run.user, isolation = isolate(
            (run.folder, *run.writable), run.readable, hidden, EMPTY_BYTES
        )
        before = loopback_bytes()
        for command, descriptors in zip(run.commands, files, strict=True):
            workers.append(start(worker.work, command, run, *descriptors))
        ended = watch(run.limits, workers, pipe, [descriptors[1] for descriptors in files])
        ended.isolation, ended.loopback = isolation, loopback_bytes() - before
    except BaseException as error:
        ended = f"{type(error).__name__}: {error}"
    finally:
        end_all()
    with contextlib.suppress(OSError):
        pipe.send(ended)


def open_files(folder: Path, rank: int) -> list[int]:
    """Descriptors for a worker's events, stacks, stdout and stderr."""
    flags = os.O_CREAT | os.O_WRONLY | os.O_APPEND | os.O_TRUNC
    names = (f"{rank}.events", None, f"{rank}.out", f"{rank}.err")
    # A worker cannot read through these descriptors; the job reads the stack back.
    return [os.open(folder / name, flags, 0o600) if name else temporary() for name in names]


def temporary() -> int:
    """A descriptor of a file without a name."""
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


def start(work, *arguments) -> int:
    """Fork a process that calls `work`, which never returns; returns its process id."""
    pid = os.fork()
    if not pid:
        os.setpgid(0, 0)
        work(*arguments)
    return pid


def watch(limits: Limits, workers: list[int], pipe: Connection, stacks: list[int]) -> Ended:
    """Wait until all workers have ended, or until there is a reason to kill them."""
    now = time.monotonic()
    clock = Clock(now, psutil.Process().memory_info().rss, changed=now)
    ended = Ended([None] * len(workers))
    while not ended.reason:
        reap(workers, ended)
        if None not in ended.codes:
            return ended
        ended.reason = clock.reason(limits, len(workers), ended.first is not None)
        if not ended.reason and pipe.poll(POLL_SECONDS):
            ended.reason = "interrupted"  # the grader is gone
    ended.stacks = take_stacks(workers, ended, stacks)
    return ended


@dataclass
class Clock:
    """When a job's workers started, last used a core, and first failed; times in seconds."""

    start: float
    base: int  # bytes of memory that every worker shares with this process
    changed: float
    used: float = 0.0  # CPU seconds at that time
    failed: float | None = None

    def reason(self, limits: Limits, workers: int, failed: bool) -> str:
        """Why the workers are to be killed now; "" if they are not."""
        now = time.monotonic()
        seconds, memory = usage(self.base)
        if abs(seconds - self.used) > IDLE_SHARE * limits.idle * workers:
            self.used, self.changed = seconds, now
        if failed and self.failed is None:
            self.failed = now
        if now - self.start > limits.seconds:
            return "time"
        if memory > limits.memory * workers:
            return "memory"
        if self.failed and now - self.failed > limits.grace:
            return "grace"
        return "idle" if now - self.changed > limits.idle else ""


def reap(workers: list[int], ended: Ended) -> None:
    """Record the exit codes of workers that have ended."""
    for rank, pid in enumerate(workers):
        if ended.codes[rank] is None:
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                ended.codes[rank] = code = os.waitstatus_to_exitcode(status)
                if code and ended.first is None:
                    ended.first = rank


def usage(base: int) -> tuple[float, int]:
    """(CPU seconds, bytes of memory beyond `base` each) of all processes of this job."""
    seconds = memory = 0
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            times = process.cpu_times()
            seconds += times.user + times.system
            memory += max(0, process.memory_info().rss - base)
    return seconds, memory


def take_stacks(workers: list[int], ended: Ended, stacks: list[int]) -> list[str]:
    """The stack of every worker that still runs, as faulthandler writes it; "" of the others."""
    running = [rank for rank, code in enumerate(ended.codes) if code is None]
    for rank in running:
        os.kill(workers[rank], STACK_SIGNAL)
    deadline = time.monotonic() + STACK_SECONDS
    while running and time.monotonic() < deadline:
        time.sleep(POLL_SECONDS / 4)
        running = [rank for rank in running if os.fstat(stacks[rank]).st_size == 0]
    texts = []
    for descriptor in stacks:
        os.lseek(descriptor, 0, os.SEEK_SET)
        texts.append(os.read(descriptor, 65536).decode("utf-8", "replace"))
    return texts


def loopback_bytes() -> int:
    """Bytes that have crossed the loopback interface."""
    counters = psutil.net_io_counters(pernic=True, nowrap=False)
    return sum(counters[name].bytes_sent for name in ("lo", "lo0") if name in counters)


def end_all() -> None:
    """Kill every process that this job has started, with their children, and wait for them."""
    while children := psutil.Process().children(recursive=True):
        for child in children:
            with contextlib.suppress(psutil.Error):
                child.kill()
        gone, _ = psutil.wait_procs(children, timeout=1)
        if not gone and all(c.status() == psutil.STATUS_ZOMBIE for c in children if c.is_running()):
            break
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
