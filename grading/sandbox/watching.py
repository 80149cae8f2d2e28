"""Watches a run's processes: what they use, how they end, and that none is left."""

import contextlib
import os
import subprocess
import time
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

from grading.plan import STACK_SIGNAL, Ended, Limits, Run
from grading.worker.root import TEMPORARY

import psutil

IDLE_SHARE = 0.02  # of a core: a worker that uses less only sends heartbeats
POLL_SECONDS = 0.1  # between looks at the workers
STACK_SECONDS = 2.0  # for the workers to write their stacks


def watch(run: Run, workers: list[int], pipe: Connection, stacks: list[int]) -> Ended:
    """Wait until all workers have ended, or until there is a reason to kill them."""
    now = time.monotonic()
    clock = Clock(now, psutil.Process().memory_info().rss, changed=now)
    disk = Disk((run.folder, *run.writable), run.limits)
    ended = Ended([None] * len(workers))
    while not ended.reason:
        reap(workers, ended)
        if None not in ended.codes:
            return ended
        failed = ended.first is not None
        ended.reason = clock.reason(run.limits, len(workers), failed) or disk.reason()
        if not ended.reason and pipe.poll(POLL_SECONDS):
            ended.reason = "interrupted"  # the grader is gone
    ended.stacks = take_stacks(workers, ended, stacks)
    return ended


@dataclass
class Clock:
    """When a job's workers started, last used a core, and first failed; times in seconds.

    On a busy machine, time spent ready to run, but waiting for a core, is neither idle nor held
    against the limit of the run, which it may at most triple. While one worker waits for a core,
    the others wait for that worker, so it is the sum of their waits that lengthens a run.
    """

    start: float
    base: int  # bytes of memory that every worker shares with this process
    changed: float
    used: float = 0.0  # seconds on a core, or ready for one, at that time
    failed: float | None = None

    def reason(self, limits: Limits, workers: int, failed: bool) -> str:
        """Why the workers are to be killed now; "" if they are not."""
        now = time.monotonic()
        seconds, waited, memory = usage(self.base)
        if abs(seconds + waited - self.used) > IDLE_SHARE * limits.idle * workers:
            self.used, self.changed = seconds + waited, now
        if failed and self.failed is None:
            self.failed = now
        if now - self.start > limits.seconds + min(waited, 2 * limits.seconds):
            return "time"
        if memory > limits.memory * workers:
            return "memory"
        if self.failed and now - self.failed > limits.grace:
            return "grace"
        return "idle" if now - self.changed > limits.idle else ""


class Disk:
    """What a run's folders hold; they are only looked through where the whole disk fills up."""

    def __init__(self, folders: tuple[Path, ...], limits: Limits):
        self.folders = [folder for folder in folders if folder.is_dir()]
        self.limits = limits
        self.free = self.left()

    def left(self) -> tuple[int, int]:
        """(bytes, files) that the disk has left."""
        facts = os.statvfs(self.folders[0])
        return facts.f_bavail * facts.f_frsize, facts.f_favail

    def reason(self) -> str:
        """ "disk" if the folders hold too much; else ""."""
        (bytes_before, files_before), (bytes_now, files_now) = self.free, self.left()
        if (
            bytes_before - bytes_now <= self.limits.disk
            and files_before - files_now <= self.limits.files
        ):
            return ""
        self.free = bytes_now, files_now  # it may be others' doing
        too_much = 1024 * self.held("-k") > self.limits.disk
        return "disk" if too_much or self.held("--inodes") > self.limits.files else ""

    def held(self, unit: str) -> int:
        """What the folders hold, as `du` counts it, however deep they are."""
        paths = [str(folder) for folder in self.folders]
        found = subprocess.run(["du", "-s", unit, *paths], capture_output=True, check=False)
        return sum(int(line.split()[0]) for line in found.stdout.splitlines())


def reap(workers: list[int], ended: Ended) -> None:
    """Record the exit codes of workers that have ended, and let go of orphans that have."""
    with contextlib.suppress(ChildProcessError):
        while (found := os.waitpid(-1, os.WNOHANG))[0]:
            if found[0] in workers:
                rank = workers.index(found[0])
                ended.codes[rank] = code = os.waitstatus_to_exitcode(found[1])
                if code and ended.first is None:
                    ended.first = rank


def usage(base: int) -> tuple[float, float, int]:
    """Of all processes of this job: CPU seconds, seconds they waited for a core, and memory.

    The memory is in bytes, beyond the `base` that each shares with this process.
    """
    seconds = waited = memory = 0
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            times = process.cpu_times()
            seconds += times.user + times.system
            waited += ready_seconds(process.pid)
            memory += max(0, process.memory_info().rss - base)
    return seconds, waited, memory + temporary_bytes()


def ready_seconds(pid: int) -> float:
    """The seconds that a process's main thread was ready to run, but waited for a core.

    0 where the system does not count them. Source: /proc/PID/schedstat (sched-stats.rst).
    """
    with contextlib.suppress(OSError, ValueError, IndexError):
        return int(Path(f"/proc/{pid}/schedstat").read_text().split()[1]) / 1e9
    return 0.0


def temporary_bytes() -> int:
    """The bytes in the temporary folders, which are memory, if they are this run's own."""
    if os.getpid() != 1:
        return 0
    facts = (os.statvfs(path) for path in TEMPORARY)
    return sum((one.f_blocks - one.f_bfree) * one.f_frsize for one in facts)


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
