"""What instructors decided about a class, read from their files before anything is graded."""

from collections.abc import Collection, Mapping
from dataclasses import replace
from datetime import datetime
from pathlib import Path

from grading import rubric
from grading.hand_in.files import walk
from grading.results import NOT_RUN, Report, Result
from grading.rubric import load_manual
from staff.classroom import metadata
from staff.classroom.course import FILE, parse_moment, read_course
from staff.classroom.entries import aliases, nearest
from staff.classroom.manual import read_manual, write_template
from staff.classroom.marks import UNGRADED, Row
from staff.classroom.overrides import NAME, read_overrides
from staff.classroom.pseudonyms import anonymous, pseudonyms_of
from staff.classroom.written import Problems, read_csv

SUBMITTED = "submitted.csv"


class Decisions:
    """Overrides, manual items, late rule and names of the class in a folder.

    `found` is name -> path of its submissions, `tasks` are those that are graded. Raises
    UserError for a file that is not valid.
    """

    def __init__(
        self,
        folder: Path,
        out: Path,
        found: Mapping[str, Path],
        course: Path | None = None,
        tasks: Collection[str] | None = None,
    ):
        self.found = found
        self.out = out
        self.pseudonyms = pseudonyms_of(out, found, wanted=False)
        self.names = aliases(found, self.pseudonyms)
        self.checks = rubric.load(tasks=tasks)
        self.items = load_manual()
        possible = {check.id: check.points for check in (*rubric.load(), *self.checks)}
        self.overrides = read_overrides(out / NAME, self.names, possible)
        self.manual = read_manual(out, self.names, self.items)
        self.course = read_course(course or FILE, self.names)
        self.submitted = self.read_submitted(out / SUBMITTED)
        self.facts = metadata.read_metadata(folder)

    def read_submitted(self, path: Path) -> dict[str, datetime]:
        """When submissions were handed in, as submitted.csv says; UserError if it is not valid."""
        found, problems = {}, Problems(path)
        rows = read_csv(path, ["submission", "submitted"]) if path.exists() else []
        for number, row in rows:
            name = self.names.get(row["submission"])
            moment = parse_moment(row["submitted"], self.course.zone)
            if not name:
                fix = nearest(row["submission"], self.names)
                problems.add(number, f"no submission {row['submission']!r}; {fix}")
            elif not moment:
                problems.add(
                    number, f"{row['submitted']!r}: write a date and time, 2026-10-01 23:59"
                )
            else:
                found[name] = moment
        problems.check()
        return found

    def write_template(self, hidden: bool) -> Path | None:
        """Write a manual.csv to fill in, if there is none; under pseudonyms, if `hidden`."""
        names = [self.pseudonyms.get(name, name) if hidden else name for name in self.found]
        return write_template(self.out, names, self.items)

    def applied(self, name: str, row: Row) -> Row:
        """A submission's row with everything that was decided about it."""
        facts = self.facts.get(self.found[name].name) or self.facts.get(name) or metadata.Facts()
        due = self.course.extensions.get(name) or facts.due or self.course.due
        submitted = self.submitted.get(name) or facts.submitted or self.file_time(name)
        row = replace(
            row,
            overrides=self.overrides.of(name),
            comment=self.overrides.comments.get(name, ""),
            manual=self.manual.get(name, ()),
            late=self.course.lateness(due, submitted),
            students=facts.students,
        )
        if due and not submitted:
            row = replace(
                row, note="; ".join(filter(None, [row.note, "time of submission unknown"]))
            )
        return self.graded_by_hand(name, row)

    def graded_by_hand(self, name: str, row: Row) -> Row:
        """A row whose points are all overrides, where the grader has no report for it."""
        if row.report or row.pending or not self.overrides.submissions.get(name):
            return row
        results = [
            Result(c.id, c.title, NOT_RUN, 0.0, c.points, diagnosis=row.error) for c in self.checks
        ]
        note = f"{UNGRADED}: {row.error}; graded by {NAME}"
        return replace(row, report=Report(row.name, results), error="", note=note)

    def assign_pseudonyms(self) -> None:
        """Give every submission that has none a pseudonym, and keep them."""
        self.pseudonyms = pseudonyms_of(self.out, self.found)

    def hidden_row(self, name: str, row: Row) -> Row:
        """A submission's row under its pseudonym."""
        return anonymous(row, name, self.pseudonyms[name])

    def hidden(self, rows: Mapping[str, Row]) -> list[Row]:
        """The rows under pseudonyms, in their order."""
        self.assign_pseudonyms()
        found = (self.hidden_row(name, row) for name, row in rows.items())
        return sorted(found, key=lambda row: row.name)

    def file_time(self, name: str) -> datetime | None:
        """The time of a submission's newest file, if the course wants it."""
        if not self.course.file_times:
            return None
        path = self.found[name]
        try:
            inner = [path / each for each in walk(path)[0]] if path.is_dir() else []
            newest = max(each.lstat().st_mtime for each in (inner or [path]))
        except OSError:
            return None
        return datetime.fromtimestamp(newest, self.course.zone)
