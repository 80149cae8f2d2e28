"""Grades submissions in separate processes: one that fails or hangs does not affect the others."""

import contextlib
import ctypes
import multiprocessing
import os
import signal
import sys
import time
import traceback
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from multiprocessing import connection
from pathlib import Path
from typing import Any

from common.errors import UserError
from grading.hand_in.archive import fetch
from grading.sandbox.temporary import PrivateFolder

SPAWN = multiprocessing.get_context("spawn")
STOP_SECONDS = 10.0  # for a grader to end its workers
POLL_SECONDS = 0.5
PR_SET_PDEATHSIG = 1  # <linux/prctl.h>
LOG_END = 2000  # characters


class Job:
    """A process that fetches and grades one submission in a private folder, and sends messages.

    A message is a pair: ("result", a Result's dict) after every check, and at the end ("report",
    JSON text), ("refused", what is wrong with the submission), ("late", after how long) or
    ("failed", what is wrong with the grader).
    """

    def __init__(
        self,
        source: Path,
        tasks: tuple[str, ...] | None = None,
        mapping: Path | None = None,
        seconds: float = float("inf"),
    ):
        self.seconds = seconds
        self.started = time.monotonic()
        self.over = False
        self.private = PrivateFolder()
        self.folder = self.private.path
        self.connection, theirs = SPAWN.Pipe(duplex=False)
        arguments = (theirs, os.getpid(), source, self.folder, {"tasks": tasks, "mapping": mapping})
        self.process = SPAWN.Process(target=work, args=arguments, daemon=False)
        self.process.start()
        theirs.close()

    def poll(self) -> list[tuple[str, Any]]:
        """Its messages since the last call; once `over`, the last is not a "result"."""
        ended, messages = self.process.exitcode is not None, []
        try:
            while self.connection.poll():
                messages.append(self.connection.recv())
        except (EOFError, OSError):
            self.process.join(STOP_SECONDS)
            ended = True
        if messages and messages[-1][0] != "result":
            self.over = True
        elif ended:
            self.over = True
            code = self.process.exitcode
            messages.append(("failed", f"{self.log()}\nthe grader ended with exit code {code}"))
        elif time.monotonic() > self.started + self.seconds:
            self.over = True
            messages.append(("late", f"not finished after {self.seconds / 60:.3g} minutes"))
        return messages

    def log(self) -> str:
        """The end of what the grader itself printed."""
        with contextlib.suppress(OSError):
            return (self.folder / "log").read_text(errors="replace")[-LOG_END:].strip()
        return ""


def next_messages(jobs: list[Job]) -> Iterator[tuple[Job, tuple[str, Any]]]:
    """Wait a moment until a job has a message; yields (job, message)."""
    connection.wait([job.connection for job in jobs], POLL_SECONDS)
    for job in jobs:
        for message in job.poll():
            yield job, message


def stop(jobs: Iterable[Job], seconds: float = STOP_SECONDS) -> None:
    """End jobs, whatever they are doing, and remove their folders."""
    for job in jobs:
        job.process.terminate()
    deadline = time.monotonic() + seconds
    for job in jobs:
        job.process.join(max(0.0, deadline - time.monotonic()))
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(job.process.pid, signal.SIGKILL)  # pyright: ignore[reportArgumentType]
        job.process.kill()
        job.process.join()
        job.connection.close()
        job.private.remove()


def work(
    pipe: connection.Connection, parent: int, source: Path, folder: Path, options: dict
) -> None:
    """In the new process: fetch the submission, grade it and send messages."""
    prepare(parent, folder / "log")
    try:
        from grading import grader  # here, so that whatever is wrong with it is reported

        report = grader.grade(
            fetch(source, folder / "submission"),
            on_result=lambda result, _: pipe.send(("result", asdict(result))),
            **options,
        )
        last = ("report", report.to_json())
    except UserError as error:
        last = ("refused", str(error))
    except KeyboardInterrupt:
        last = None
    except BaseException:
        last = ("failed", traceback.format_exc())
    with contextlib.suppress(OSError):  # the parent may be gone
        if last:
            pipe.send(last)


def prepare(parent: int, log: Path) -> None:
    """End with the parent, ignore its Ctrl-C, and print into a file."""
    os.setsid()  # Ctrl-C goes to the parent alone
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:
            os._exit(1)
    descriptor = os.open(log, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)
    for number in (1, 2):
        os.dup2(descriptor, number)
