"""What counts for a submission's grade: checks, overrides, manual items and lateness."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from grading.hand_in.safe_text import line
from grading.results import FAILED, Report, Result

UNGRADED = "could not be graded"
PENDING = "not graded yet"
MANUAL = "manual"  # in place of a task, in the names of manual items


class Override(NamedTuple):
    """What an instructor decided about a check; `points` are None where only commented on."""

    points: float | None = None
    comment: str = ""


class Student(NamedTuple):
    """Who handed in a submission, as a platform's export names them; "" for what is not known."""

    name: str = ""
    email: str = ""
    sid: str = ""


@dataclass(frozen=True)
class Lateness:
    """How late a submission is (`text`), and how much of the earned points that costs."""

    text: str
    percent: float


@dataclass(frozen=True)
class Mark:
    """A check or a manual item as it counts; `points` are None until somebody enters them.

    `name` is "task2a/gradients" or "manual/reasoning"; `result` is what the grader found, and
    `overridden` whether `points` replace the grader's, and differ.
    """

    name: str
    title: str
    possible: float
    points: float | None
    comment: str = ""
    result: Result | None = None
    overridden: bool = False

    @property
    def task(self) -> str:
        """Its task, or MANUAL."""
        return self.name.partition("/")[0]


@dataclass(frozen=True)
class Row:
    """A submission of a class: its report, or why there is none, and what instructors decided.

    `pending` ones were not graded yet, since the run was interrupted. `manual` are the marks of
    the manual items, `overrides` is check -> Override.
    """

    name: str
    report: Report | None = None
    error: str = ""
    pending: bool = False
    note: str = ""
    comment: str = ""
    manual: tuple[Mark, ...] = ()
    overrides: Mapping[str, Override] = field(default_factory=dict)
    late: Lateness | None = None
    students: tuple[Student, ...] = ()

    @property
    def results(self) -> dict[str, Result]:
        """What the grader found, by check."""
        return {result.check: result for result in self.report.results} if self.report else {}

    @property
    def marks(self) -> tuple[Mark, ...]:
        """Everything that counts, checks first; none for what was not graded."""
        if not self.report:
            return ()
        return (*(self.mark(result) for result in self.report.results), *self.manual)

    def mark(self, result: Result) -> Mark:
        """A check's mark."""
        override = self.overrides.get(result.check, Override())
        mark = Mark(
            result.check, result.title, result.possible, result.points, override.comment, result
        )
        if override.points is None or override.points == result.points:
            return mark
        return replace(mark, points=override.points, overridden=True)

    @property
    def earned(self) -> float:
        """The points before anything is deducted."""
        return sum(mark.points or 0.0 for mark in self.marks)

    @property
    def deducted(self) -> float:
        """The points that lateness costs."""
        return round(self.earned * self.late.percent / 100, 2) if self.late else 0.0

    @property
    def points(self) -> float:
        """The points that count."""
        return round(self.earned - self.deducted, 6)

    @property
    def possible(self) -> float:
        """The points that could be earned."""
        return sum(mark.possible for mark in self.marks)

    @property
    def missing(self) -> list[str]:
        """The manual items that nobody has entered points for."""
        return [mark.name.partition("/")[2] for mark in self.manual if mark.points is None]

    @property
    def notes(self) -> str:
        """Everything about it that an instructor should see besides the points."""
        changed = [
            f"{mark.name} overridden: {mark.points:g}, not {mark.result.points:g}"
            for mark in self.marks
            if mark.overridden and mark.result
        ]
        parts = [
            f"{PENDING if self.pending else UNGRADED}: {self.error}" if self.error else "",
            self.note,
            self.late.text if self.late else "",
            "; ".join(changed),
            f"not entered yet: {', '.join(self.missing)}" if self.missing and self.report else "",
        ]
        return "; ".join(part for part in parts if part)

    @property
    def text(self) -> str:
        """Its result in one line."""
        if not self.report:
            why = PENDING if self.pending else UNGRADED
            return f"{line(self.name)}: {why}: {line(self.error, 400)}"
        failed = [result.check for result in self.results.values() if result.status == FAILED]
        what = f"; failed: {', '.join(map(line, failed))}" if failed else ""
        points = f"{self.points:g} of {self.possible:g} points"
        return f"{line(self.name)}: {points}{what} ({self.report.seconds:.0f} s)"
