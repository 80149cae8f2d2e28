"""Classes for the tests: graded by real processes with a stand-in for the grader; no training."""

import contextlib
import csv
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from grading import grader
from grading.results import FAILED, NOT_RUN, PASSED, UNKNOWN, Report, Result
from grading.sandbox import session
from staff.classroom import grade as classroom
from staff.classroom import jobs

import psutil

ROOT = Path(__file__).parents[2]
DEADLINE = 60  # seconds


def stand_in(path, tasks=None, mapping=None, on_result=None, session=None):  # noqa: ARG001
    """A grader for these tests: the first word in task1/run_glue.py says what it does.

    With a mapping it is that in src/train_ddp.py.
    """
    text = (path / ("src/train_ddp.py" if mapping else "task1/run_glue.py")).read_text()
    report = Report(submission="not its name", seconds=1.0, isolation=f"process {os.getpid()}")
    words = text.split()
    statuses = {"right": (PASSED, PASSED), "wrong": (FAILED, NOT_RUN), "odd": (UNKNOWN, PASSED)}
    if words[0] == "crash":
        raise RuntimeError("no such reference")
    if words[0] == "die":
        subprocess.Popen(["sleep", "1000"])
        os.kill(os.getpid(), signal.SIGKILL)
    if words[0] == "sleep":
        subprocess.run(["sleep", "1000"], check=False)
    for check, status in zip(("task1/runs", "task2a/gradients"), statuses[words[0]], strict=True):
        got = text if status == FAILED else ""
        cause = "summed" if status == FAILED else ""
        points = 2.0 * (status == PASSED)
        report.results.append(Result(check, "A title", status, points, 2.0, got=got, cause=cause))
        on_result(report.results[-1], report)
    return report


def work_by_stand_in(*arguments):
    """In a job's new process: its work, with the stand-in as the grader."""
    grader.grade = stand_in
    session.Session = contextlib.nullcontext
    jobs.work(*arguments)


def submission(folder, text):
    """A folder that the stand-in grades as the text says."""
    (folder / "task1").mkdir(parents=True)
    (folder / "task1" / "run_glue.py").write_text(text, newline="")
    return folder


def grade(folder, out, **options):
    """Grade a class by the stand-in; the rows by name, and the lines of grades.csv."""
    options = classroom.Options(**{"seconds": DEADLINE, **options})
    rows = classroom.grade_class(folder, out, options)
    with (out / "grades.csv").open(newline="", encoding="utf-8") as file:
        table = {line["submission"]: line for line in csv.DictReader(file)}
    return {row.name: row for row in rows}, table


CLASS = """
import sys
from staff import __main__
from staff.classroom import jobs
from staff.tests.classes import work_by_stand_in
if __name__ == "__main__":
    jobs.work = work_by_stand_in
    sys.exit(__main__.main(sys.argv[1:]))
"""


def heed_ctrl_c():
    """In a new process: Ctrl-C counts, even where whoever runs these tests ignores it."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def names_below(process):
    """The names of a process's children, and theirs, that are not over."""
    found = set()
    for child in psutil.Process(process.pid).children(recursive=True):
        with contextlib.suppress(psutil.Error):
            found.add(child.name())
    return found


def started(room, out, *flags):
    """A run of `python -m staff grade` in the background, which a stand-in grades in."""
    script = out.parent / "class.py"
    script.write_text(CLASS)
    command = [sys.executable, str(script), "grade", str(room), "--out", str(out), *flags]
    env = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(out.parent)}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, env=env, preexec_fn=heed_ctrl_c, **pipes)


def wait_until_asleep(process):
    """Return when a submission that sleeps is being graded."""
    deadline = time.monotonic() + DEADLINE
    while "sleep" not in names_below(process):
        assert time.monotonic() < deadline
        assert process.poll() is None
        time.sleep(0.05)
