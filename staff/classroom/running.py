"""Grades submissions, several at once; whatever one of them does is its own result."""

import signal
import sys
import traceback
from collections import deque
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from grading.hand_in.safe_text import line, visible
from grading.results import Report
from staff.classroom.jobs import Grader, next_messages, stop

from tqdm import tqdm


@dataclass(frozen=True)
class Options:
    """How submissions are graded: `seconds` are each one's at most, `only` names those to grade.

    `course` is the settings' file, in place of staff/course.yaml; with `anonymous` the tables are
    also written under pseudonyms.
    """

    jobs: int = 1
    tasks: tuple[str, ...] | None = None
    mapping: Path | None = None
    again: bool = False
    seconds: float = 1800.0
    only: tuple[str, ...] = ()
    course: Path | None = None
    anonymous: bool = False


def grade_all(
    submissions: Mapping[str, Path], options: Options
) -> Generator[tuple[str, Report | None, str], None, None]:
    """Grade submissions, several at once; yields (name, report, "") or (name, None, why not)."""
    waiting, running, idle = deque(submissions.items()), {}, []
    try:
        while waiting or running:
            while waiting and len(running) < options.jobs:
                name, path = waiting.popleft()
                try:
                    grader = ready_grader(idle)
                    running[grader] = name
                    grader.begin(
                        path, options.seconds, tasks=options.tasks, mapping=options.mapping
                    )
                except Exception:
                    yield name, *outcome("failed", traceback.format_exc())
            for grader, (kind, content) in next_messages(list(running)):
                if kind == "result":
                    continue
                name = running.pop(grader)
                if kind == "failed":
                    who = "a submission" if options.anonymous else line(name)
                    tqdm.write(f"{who}: {visible(content)}", file=sys.stderr)
                if grader.usable:
                    grader.clear()
                    idle.append(grader)
                else:
                    stop([grader])
                yield name, *outcome(kind, content)
    finally:
        with uninterrupted():
            stop([*running, *idle])


def ready_grader(idle: list[Grader]) -> Grader:
    """A grader that has finished others, taken out of `idle`, or a new one."""
    while idle:
        grader = idle.pop()
        if grader.process.is_alive():
            return grader
        stop([grader])
    return Grader()


def outcome(kind: str, content: str) -> tuple[Report | None, str]:
    """(report, "") or (None, why there is none) from a job's last message."""
    if kind == "report":
        try:
            return Report.from_json(content), ""
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            return None, f"its report cannot be read: {type(error).__name__}: {error}"
    if kind in ("refused", "late"):
        return None, content
    return None, f"the grader failed: {(content.strip().splitlines() or ['no reason'])[-1]}"


@contextmanager
def uninterrupted():
    """Ignore further Ctrl-C and SIGTERM while what is done is stopped or written."""
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.signal(number, signal.SIG_IGN) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
