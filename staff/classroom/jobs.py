"""Grades submissions in processes of their own: one that fails or hangs costs no other."""

import contextlib
import ctypes
import multiprocessing
import os
import shutil
import signal
import sys
import tempfile
import time
import traceback
from dataclasses import asdict
from multiprocessing import connection
from pathlib import Path

from common.errors import UserError
from grading.hand_in.archive import fetch

SPAWN = multiprocessing.get_context("spawn")
GRACE = 10.0  # seconds for a grader to end its workers
PR_SET_PDEATHSIG = 1  # <linux/prctl.h>


class Job:
    """A process that fetches and grades one submission in a private folder, and tells of it.

    What it tells are pairs: ("result", a Result's dict) after every check, and at the end
    ("report", JSON text), ("refused", what is wrong with the submission), ("late", after how long)
    or ("failed", what is wrong with the grader). `grade` is for tests; else it is grading.grader's.
    """

    def __init__(self, source, tasks=None, mapping=None, grade=None, seconds=float("inf")):
        self.source, self.started = source, time.monotonic()
        self.deadline, self.over = self.started + seconds, False
        self.folder = Path(tempfile.mkdtemp(prefix="grading-"))  # for nobody else
        self.connection, theirs = SPAWN.Pipe(duplex=False)
        arguments = (theirs, os.getpid(), source, self.folder, tasks, mapping, grade)
        self.process = SPAWN.Process(target=work, args=arguments, daemon=False)
        self.process.start()
        theirs.close()

    def news(self):
        """What it told since the last call; once `over`, the last pair is not a "result"."""
        ended, told = self.process.exitcode is not None, []
        try:
            while self.connection.poll():
                told.append(self.connection.recv())
        except (EOFError, OSError):
            self.process.join(GRACE)
            ended = True
        if told and told[-1][0] != "result":
            self.over = True
        elif ended:
            self.over = True
            code = self.process.exitcode
            told.append(("failed", f"{self.log()}\nthe grader ended with exit code {code}"))
        elif time.monotonic() > self.deadline:
            self.over = True
            seconds = self.deadline - self.started
            told.append(("late", f"it was not done after {seconds / 60:.3g} minutes"))
        return told

    def log(self):
        """The end of what the grader itself printed."""
        with contextlib.suppress(OSError):
            return (self.folder / "log").read_text(errors="replace")[-2000:].strip()
        return ""


def next_news(jobs, seconds=0.5):
    """Wait until a job has something to tell, or that long; yields (job, pair)."""
    connection.wait([job.connection for job in jobs], seconds)
    for job in jobs:
        for pair in job.news():
            yield job, pair


def stop(jobs, grace=GRACE):
    """End jobs, whatever they are doing, and remove their folders."""
    for job in jobs:
        job.process.terminate()
    deadline = time.monotonic() + grace
    for job in jobs:
        job.process.join(max(0.0, deadline - time.monotonic()))
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(job.process.pid, signal.SIGKILL)
        job.process.kill()
        job.process.join()
        job.connection.close()
        remove(job.folder)


def remove(folder):
    """Remove a folder, whatever modes those in it have."""
    for here, folders, _ in os.walk(folder):
        for path in (Path(here) / name for name in folders):
            with contextlib.suppress(OSError):
                if not path.is_symlink():
                    path.chmod(0o700)
    shutil.rmtree(folder, ignore_errors=True)


def work(pipe, parent, source, folder, tasks, mapping, grade):
    """In the new process: fetch the submission, grade it and tell."""
    os.setsid()  # Ctrl-C goes to the parent alone
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:
            os._exit(1)
    log = os.open(folder / "log", os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)
    for number in (1, 2):
        os.dup2(log, number)
    try:
        root = fetch(source, folder / "submission")
        if grade is None:
            from grading.grader import grade
        report = grade(
            root,
            tasks=tasks,
            mapping=mapping,
            on_result=lambda result, _: pipe.send(("result", asdict(result))),
        )
        told = ("report", report.to_json())
    except UserError as error:
        told = ("refused", str(error))
    except KeyboardInterrupt:
        told = None
    except BaseException:
        told = ("failed", traceback.format_exc())
    with contextlib.suppress(OSError):  # the parent may be gone
        if told:
            pipe.send(told)
