"""The results of grading a submission: one per check, and the report that holds them."""

import json
from dataclasses import asdict, dataclass, field
from typing import NamedTuple

PASSED, FAILED, NOT_RUN, UNKNOWN = "passed", "failed", "not run", "could not be checked"
VISIBILITIES = ("visible", "hidden", "after_due_date", "after_published")  # to Gradescope


class Cause(NamedTuple):
    """A likely cause: its short name, a sentence for the student, and a place in the handout."""

    name: str
    sentence: str


@dataclass(frozen=True)
class Result:
    """One check's outcome; texts are plain, one line or a few, and may hold a submission's words.

    `check` is "task2a/gradients"; `status` one of the four above; `points` of `possible`. A failed
    one has what was `expected`, what was `got`, `where` (step, rank, tensor) it first differed,
    the likely `diagnosis`, its short name `cause` ("summed"; "" if none fits), and where the
    handout explains it (`see`). `tolerance` is how far off was allowed, and why. If it was not
    run, or could not be checked, `diagnosis` is the reason.
    """

    check: str
    title: str
    status: str
    points: float
    possible: float
    expected: str = ""
    got: str = ""
    where: str = ""
    cause: str = ""
    diagnosis: str = ""
    see: str = ""
    tolerance: str = ""

    @property
    def reason(self) -> str:
        """Why it did not pass, in one sentence."""
        if self.status == FAILED or self.diagnosis.startswith(self.status):
            return self.diagnosis
        return f"{self.status} {self.diagnosis}"

    def text(self) -> str:
        """The result in a few lines of plain text."""
        lines = [f"{self.status}: {self.check} ({self.points:g}/{self.possible:g}) {self.title}"]
        for name in ("expected", "got", "where", "diagnosis", "tolerance", "see"):
            value = getattr(self, name)
            if value:
                lines.append(f"  {name}: {value}".replace("\n", "\n    "))
        return "\n".join(lines)


@dataclass
class Report:
    """All results of one submission, in the rubric's order; `seconds` is how long grading took.

    `isolation` is how many workers it ran on, and how they were isolated; `sync_ratio` is task ->
    seconds of its synchronization over those of one flat all_reduce of the same bytes.
    `measured` is check -> its largest deviation, where that is a number. `outputs` is
    "task2a/plain" (a task and its setting; "few-2" with 2 workers) -> by rank, the ends of what it
    printed: {"out": ..., "err": ...}, with whatever characters they hold. `commands` is task -> how
    it was called and why, where not as in the assignment.
    """

    submission: str
    results: list[Result] = field(default_factory=list)
    seconds: float = 0.0
    isolation: str = ""
    sync_ratio: dict[str, float] = field(default_factory=dict)
    measured: dict[str, float] = field(default_factory=dict)
    outputs: dict[str, list[dict[str, str]]] = field(default_factory=dict)
    commands: dict[str, str] = field(default_factory=dict)

    @property
    def points(self) -> float:
        """The points earned."""
        return sum(result.points for result in self.results)

    @property
    def possible(self) -> float:
        """The points that could be earned."""
        return sum(result.possible for result in self.results)

    def to_json(self) -> str:
        """The report as JSON text."""
        return json.dumps(asdict(self), indent=1) + "\n"

    @classmethod
    def from_json(cls, text: str) -> "Report":
        """The report that `to_json` wrote; ValueError, KeyError or TypeError if it is not one."""
        facts = json.loads(text)
        return cls(**{**facts, "results": [Result(**result) for result in facts["results"]]})


class Outcome(NamedTuple):
    """A check's finding; the fields are those of Result."""

    status: str
    expected: str = ""
    got: str = ""
    where: str = ""
    cause: Cause = Cause("", "")
    tolerance: str = ""


def passed(got: str = "", tolerance: str = "") -> Outcome:
    """A check that passed."""
    return Outcome(PASSED, got=got, tolerance=tolerance)


def failed(expected: str, got: str, where: str, cause: Cause, tolerance: str = "") -> Outcome:
    """A check that failed."""
    return Outcome(FAILED, expected, got, where, cause, tolerance)


def unknown(why: str) -> Outcome:
    """A check that could not be made."""
    return Outcome(UNKNOWN, cause=Cause("", why))


def not_run(why: str) -> Outcome:
    """A check that was not made, because another failed."""
    return Outcome(NOT_RUN, cause=Cause("", why))
