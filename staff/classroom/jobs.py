"""Grades submissions in separate processes: one that fails or hangs does not affect the others."""

import contextlib
import ctypes
import multiprocessing
import os
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from multiprocessing import connection
from pathlib import Path
from typing import Any

from common.errors import UserError
from grading.hand_in.archive import fetch
from grading.sandbox.temporary import PrivateFolder, remove

SPAWN = multiprocessing.get_context("spawn")
STOP_SECONDS = 10.0  # for a grader to end its workers
POLL_SECONDS = 0.5
PR_SET_PDEATHSIG = 1  # <linux/prctl.h>
LOG_END = 2000  # characters
USUAL_ENDS = ("report", "refused")  # of a submission; after others its grader is not used again


class Grader:
    """A process that fetches and grades one submission after another, and sends messages.

    What submissions need alike, such as their inputs and torch, is loaded once for all of them. A
    message is a pair: ("result", a Result's dict) after every check, and at the end ("report",
    JSON text), ("refused", what is wrong with the submission), ("late", after how long) or
    ("failed", what is wrong with the grader).
    """

    def __init__(self):
        self.deadline = float("inf")
        self.seconds = float("inf")
        self.over = True  # nothing is being graded
        self.usable = True  # for another submission
        self.place = None  # where the submission is unpacked
        self.private = PrivateFolder()
        self.folder = self.private.path
        self.connection, theirs = SPAWN.Pipe()
        arguments = (theirs, os.getpid(), self.folder)
        self.process = SPAWN.Process(target=work, args=arguments, daemon=False)
        self.process.start()
        theirs.close()

    def begin(self, source: Path, seconds: float = float("inf"), **options: Any) -> None:
        """Grade a submission, in at most that time; `options` are those of grading.grader.grade.

        Raises OSError if the process has ended.
        """
        self.place = Path(tempfile.mkdtemp(dir=self.folder, prefix="job-"))
        self.seconds, self.deadline = seconds, time.monotonic() + seconds
        self.over = False
        self.connection.send((source, self.place, options))

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
        elif time.monotonic() > self.deadline:
            self.over = True
            messages.append(("late", f"not finished after {self.seconds / 60:.3g} minutes"))
        if self.over and messages:
            self.usable = messages[-1][0] in USUAL_ENDS
        return messages

    def clear(self) -> None:
        """Remove what was unpacked of the last submission."""
        if self.place:
            remove(self.place)

    def log(self) -> str:
        """The end of what the grader itself printed."""
        with contextlib.suppress(OSError):
            return (self.folder / "log").read_text(errors="replace")[-LOG_END:].strip()
        return ""


def next_messages(graders: list[Grader]) -> Iterator[tuple[Grader, tuple[str, Any]]]:
    """Wait a moment until a grader has a message; yields (grader, message)."""
    connection.wait([grader.connection for grader in graders], POLL_SECONDS)
    for grader in graders:
        for message in grader.poll():
            yield grader, message


def stop(graders: Iterable[Grader], seconds: float = STOP_SECONDS) -> None:
    """End graders, whatever they are doing, and remove their folders."""
    graders = list(graders)
    for grader in graders:
        grader.process.terminate()
    deadline = time.monotonic() + seconds
    for grader in graders:
        grader.process.join(max(0.0, deadline - time.monotonic()))
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(grader.process.pid, signal.SIGKILL)  # pyright: ignore[reportArgumentType]
        grader.process.kill()
        grader.process.join()
        grader.connection.close()
        grader.private.remove()


def work(pipe: connection.Connection, parent: int, folder: Path) -> None:
    """In the new process: grade what comes through the pipe, one after the other."""
    prepare(parent, folder / "log")
    with contextlib.suppress(KeyboardInterrupt, EOFError, OSError):  # the parent may be gone
        source, place, options = pipe.recv()
        from grading.sandbox.session import Session  # here, so that what is wrong is reported

        with Session(folder) as session:
            while True:
                pipe.send(graded(pipe, source, place, {**options, "session": session}))
                source, place, options = pipe.recv()


def graded(
    pipe: connection.Connection, source: Path, place: Path, options: dict
) -> tuple[str, str]:
    """Fetch and grade one submission; the last message about it."""
    try:
        from grading import grader

        report = grader.grade(
            fetch(source, place / "submission", any_script=bool(options.get("mapping"))),
            on_result=lambda result, _: pipe.send(("result", asdict(result))),
            **options,
        )
        return "report", report.to_json()
    except UserError as error:
        return "refused", str(error)
    except KeyboardInterrupt:
        raise
    except BaseException:
        return "failed", traceback.format_exc()


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
