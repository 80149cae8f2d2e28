"""overrides.yaml: what instructors decide against the grader; it survives every regrading.

    checks:                       # for everybody
      task2a/timing: {points: full, comment: "The machine was busy: full points for all."}
    submissions:
      ann:
        comment: "Thank you for the bug report."
        task2a/gradients: {points: 4, comment: "A typing error only."}

`points` are from 0 to what the check gives, or `full`. A submission's own override comes before
one for everybody. The grader reads the file and never writes it.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from grading.hand_in.safe_text import line
from staff.classroom.entries import nearest
from staff.classroom.marks import Override
from staff.classroom.written import Problems, Written, as_points, read_yaml

NAME = "overrides.yaml"
EXAMPLE = 'write {points: 4, comment: "why"}'


class Overrides(NamedTuple):
    """The file's content: `checks` for everybody, by submission's name, and its comments."""

    checks: dict[str, Override]
    submissions: dict[str, dict[str, Override]]
    comments: dict[str, str]

    def of(self, name: str) -> dict[str, Override]:
        """A submission's overrides."""
        return {**self.checks, **self.submissions.get(name, {})}


def read_overrides(
    path: Path, names: Mapping[str, str], possible: Mapping[str, float]
) -> Overrides:
    """Read the file, if it is there; UserError with every line that is wrong.

    `names` is what may be written for a submission -> its name, `possible` check -> its points.
    """
    found = Overrides({}, {}, {})
    if not path.exists():
        return found
    problems, content = Problems(path), read_yaml(path)
    parts = mapping(content, "the file", problems)
    for key, part in parts.items():
        if key == "checks":
            found.checks.update(read_checks(part, "everybody", possible, problems))
        elif key == "submissions":
            for written_name, each in mapping(part, "submissions", problems).items():
                if written_name in names:
                    read_submission(names[written_name], each, possible, found, problems)
                else:
                    fix = nearest(written_name, names)
                    problems.add(each.line, f"no submission {line(written_name)!r}; {fix}")
        else:
            problems.add(part.line, f"unknown key {line(key)!r}; use checks or submissions")
    problems.check()
    return found


def read_submission(
    name: str, part: Written, possible: Mapping[str, float], found: Overrides, problems: Problems
) -> None:
    """Add one submission's overrides and comment."""
    entries = dict(mapping(part, line(name), problems))
    comment = entries.pop("comment", None)
    if comment:
        found.comments[name] = str(comment.value)
    checks = read_checks(Written(entries, part.line), line(name), possible, problems)
    found.submissions.setdefault(name, {}).update(checks)


def read_checks(
    part: Written, whose: str, possible: Mapping[str, float], problems: Problems
) -> dict[str, Override]:
    """Check -> Override of a mapping."""
    found = {}
    for check, each in mapping(part, whose, problems).items():
        if check not in possible:
            problems.add(each.line, f"no check {line(check)!r}; {nearest(check, list(possible))}")
            continue
        facts = mapping(each, f"{check} of {whose}", problems)
        for key in set(facts) - {"points", "comment"}:
            problems.add(facts[key].line, f"unknown key {line(key)!r}; {EXAMPLE}")
        points = None
        if "points" in facts:
            given, number = facts["points"]
            points = as_points(given, possible[check])
            if points is None:
                most = f"give 0 to {possible[check]:g}, or full"
                problems.add(number, f"{check} of {whose}: {line(given)} points; {most}")
        comment = facts["comment"].value if "comment" in facts else ""
        found[check] = Override(points, str(comment or ""))
    return found


def mapping(part: Written, what: str, problems: Problems) -> dict[str, Written]:
    """A mapping's entries; none, and a problem, if it is not a mapping."""
    if part.value is None or isinstance(part.value, dict):
        return part.value or {}
    problems.add(part.line, f"{what}: {line(part.value)!r} is not a mapping; {EXAMPLE}")
    return {}
