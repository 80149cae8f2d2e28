"""Runs a submission's workers: isolated, limited, and all of them killed at the deadline."""

import contextlib
import os
import signal
import tempfile
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NoReturn

from grading.plan import Ended, Run
from grading.sandbox.forks import FORKS, fork
from grading.sandbox.watching import end_all, loopback_bytes, watch
from grading.worker.inside import in_words, verify
from grading.worker.isolation import (
    LINUX,
    drop_privileges,
    hand_over,
    limit,
    new_user,
    separate,
)
from grading.worker.libc import PR_SET_CHILD_SUBREAPER, PR_SET_PDEATHSIG, prctl
from grading.worker.root import enter_root

Work = Callable[..., NoReturn]


class NotContainedError(RuntimeError):
    """Why processes could not be given a root folder and process numbers of their own."""


def run_workers(run: Run) -> Ended:
    """Run all workers to their end; none of them outlives this call.

    Raises RuntimeError if the workers could not be started or watched.
    """
    if LINUX and os.geteuid() == 0:
        with contextlib.suppress(NotContainedError):
            return in_job(run, contained=True)
    return in_job(run, contained=False)


def in_job(run: Run, contained: bool) -> Ended:
    """The same, in processes of their own or with less; NotContainedError if that fails."""
    ours, theirs = FORKS.Pipe()
    process = fork(job, run, theirs, contained)
    theirs.close()
    try:
        ended = ours.recv()
    except EOFError:
        raise RuntimeError(f"the job died (exit code {process.exitcode})") from None
    finally:
        ours.close()  # the job sees this, and kills all workers
        process.join()
    if isinstance(ended, Exception):
        raise ended
    return ended


def job(run: Run, pipe: Connection, contained: bool) -> None:
    """In a separate process: start the workers, watch them, and send how they ended."""
    from grading.worker import worker  # the fork server alone has torch; no kit is seen later

    os.setsid()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    ended = None
    try:
        run.observed.mkdir(parents=True, exist_ok=True, mode=0o700)
        files = [open_files(run.observed, rank) for rank in range(len(run.commands))]
        run.user = new_user(contained)
        if run.user is not None:
            hand_over((run.folder, *run.writable), run.user)
        if contained:
            as_first_process(run, files, pipe, worker.work)
        else:
            if LINUX:
                prctl(PR_SET_CHILD_SUBREAPER)  # orphans become our children
            ended = supervise(run, files, pipe, worker.work)
    except NotContainedError as error:
        ended = error
    except BaseException as error:
        ended = RuntimeError(f"{type(error).__name__}: {error}")
    finally:
        end_all()
    with contextlib.suppress(OSError):
        pipe.send(ended) if ended else None


def as_first_process(run: Run, files: list[list[int]], pipe: Connection, work: Work) -> None:
    """Fork the first process of new process numbers, which does the rest; return when it is over.

    When it ends, the system kills all that it has started. NotContainedError if it cannot be made.
    """
    try:
        separate()
    except OSError as error:
        raise NotContainedError(str(error)) from None
    first = os.fork()
    if first:
        os.waitpid(first, 0)
        return
    try:
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        move_in(run)
        ended = supervise(run, files, pipe, work)
    except NotContainedError as error:
        ended = error
    except BaseException as error:
        ended = RuntimeError(f"{type(error).__name__}: {error}")
    with contextlib.suppress(OSError):
        pipe.send(ended)
    os._exit(0)


def move_in(run: Run) -> None:
    """Move into a root folder that holds what the run may see; NotContainedError if that fails."""
    try:
        enter_root(run.observed, (run.folder, *run.writable), run.readable, run.user or 0)
    except OSError as error:
        raise NotContainedError(str(error)) from None


def supervise(run: Run, files: list[list[int]], pipe: Connection, work: Work) -> Ended:
    """Start the workers and watch them to their end."""
    isolation, before = in_words(verified(run)), loopback_bytes()
    workers = [start(work, rank, run, *descriptors) for rank, descriptors in enumerate(files)]
    ended = watch(run, workers, pipe, [descriptors[1] for descriptors in files])
    ended.isolation, ended.loopback = isolation, loopback_bytes() - before
    return ended


def verified(run: Run) -> str:
    """What `verify` finds in a process that has no more rights than a worker."""
    read, write = os.pipe()
    pid = os.fork()
    if not pid:
        with contextlib.suppress(BaseException):
            drop_privileges(run.user)
            limit(run.limits, run.user)
            os.write(write, verify(run).encode())
        os._exit(0)
    os.close(write)
    with open(read) as file:
        text = file.read()
    os.waitpid(pid, 0)
    return text


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


def start(work: Work, *arguments) -> int:
    """Fork a process that calls `work`, which never returns; returns its process id."""
    pid = os.fork()
    if not pid:
        os.setpgid(0, 0)
        work(*arguments)
    return pid
