"""The tables of a graded class: grades.csv, grades.json, matrix.html, and a summary."""

import csv
import io
import json
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from common.files import write_whole
from grading.hand_in.safe_text import for_csv, for_html, line
from grading.results import FAILED, NOT_RUN, PASSED, UNKNOWN, Report, Result

TEMPLATE = Path(__file__).with_name("class_page.html")
UNGRADED = "could not be graded"
# Status -> what a cell shows, and its class in the page.
SIGNS = {
    PASSED: ("✓", "passed"),
    FAILED: ("✗", "failed"),
    NOT_RUN: ("\u2013", "other"),
    UNKNOWN: ("?", "other"),
}


@dataclass(frozen=True)
class Row:
    """A submission of a class: its report, or why it could not be graded."""

    name: str
    report: Report | None = None
    error: str = ""

    @property
    def results(self) -> dict[str, Result]:
        """Its results by check."""
        return {result.check: result for result in self.report.results} if self.report else {}

    @property
    def text(self) -> str:
        """Its result in one line."""
        if not self.report:
            return f"{line(self.name)}: {UNGRADED}: {line(self.error, 400)}"
        failed = [result.check for result in self.results.values() if result.status == FAILED]
        what = f"; failed: {', '.join(map(line, failed))}" if failed else ""
        points = f"{self.report.points:g} of {self.report.possible:g} points"
        return f"{line(self.name)}: {points}{what} ({self.report.seconds:.0f} s)"


def checks_of(rows: Sequence[Row]) -> dict[str, str]:
    """Check -> title, in the reports' order."""
    return {check: each.title for row in rows for check, each in row.results.items()}


def write_tables(out: Path, rows: Sequence[Row]) -> list[Path]:
    """Write the three files, each whole or not at all; returns their paths."""
    texts = {
        "grades.csv": as_csv(rows),
        "grades.json": as_json(rows),
        "matrix.html": as_page(rows),
    }
    for name, text in texts.items():
        write_whole(out / name, text)
    return [out / name for name in texts]


def as_csv(rows: Sequence[Row]) -> str:
    """A row per submission, a column per check."""
    checks, text = checks_of(rows), io.StringIO()
    table = csv.writer(text, quoting=csv.QUOTE_NONNUMERIC)
    table.writerow(map(for_csv, ["submission", "points", "possible", *checks, "note"]))
    for row in rows:
        totals = [row.report.points, row.report.possible] if row.report else ["", ""]
        points = [row.results[check].points if check in row.results else "" for check in checks]
        note = f"{UNGRADED}: {row.error}" if row.error else ""
        table.writerow(map(for_csv, [row.name, *totals, *points, note]))
    return text.getvalue()


def as_json(rows: Sequence[Row]) -> str:
    """The same as JSON, with status and cause of every check."""
    found = [
        {
            "submission": row.name,
            "points": row.report.points if row.report else None,
            "possible": row.report.possible if row.report else None,
            "error": row.error,
            "checks": {
                check: {"status": each.status, "points": each.points, "cause": each.cause}
                for check, each in row.results.items()
            },
        }
        for row in rows
    ]
    return json.dumps({"submissions": found}, indent=1) + "\n"


def as_page(rows: Sequence[Row]) -> str:
    """The matrix as a self-contained page; no text of a submission is markup in it."""
    checks = list(checks_of(rows))
    tasks = [(task, len(list(group))) for task, group in groupby(checks, lambda c: c.split("/")[0])]
    parts = {
        "COUNT": f"{len(rows)} submissions, {sum(bool(row.error) for row in rows)} {UNGRADED}",
        "SUMMARY": "\n".join(map(summary_row, summary(rows))),
        "TASKS": "".join(f'<th colspan="{n}">{for_html(task)}</th>' for task, n in tasks),
        "CHECKS": "".join(
            f'<th scope="col"><span>{for_html(check.split("/")[-1])}</span></th>'
            for check in checks
        ),
        "ROWS": "\n".join(page_row(row, checks) for row in rows),
    }
    template = TEMPLATE.read_text(encoding="utf-8")
    return re.sub(r"@([A-Z]+)@", lambda match: parts[match[1]], template)


def page_row(row: Row, checks: list[str]) -> str:
    """A submission's row of the matrix."""
    name = f'<th scope="row"><bdi>{for_html(line(row.name))}</bdi></th>'
    if not row.report:
        text = f"{UNGRADED}: {for_html(row.error)}"
        return (
            f'<tr>{name}<td></td><td class="ungraded" colspan="{len(checks) or 1}">{text}</td></tr>'
        )
    points = f"<td>{row.report.points:g} / {row.report.possible:g}</td>"
    cells = [cell(row.name, row.results.get(check)) for check in checks]
    return f"<tr>{name}{points}{''.join(cells)}</tr>"


def cell(name: str, result: Result | None) -> str:
    """A check's cell: its status, and the reason when hovered over or opened."""
    if not result:
        return "<td></td>"
    sign, kind = SIGNS[result.status]
    text = for_html(result.text())
    label = for_html(f"{result.status}: {result.check} of {line(name)}")
    if result.status == PASSED:
        return f'<td class="{kind}" title="{text}">{sign}</td>'
    return (
        f'<td class="{kind}"><details name="open">'
        f'<summary aria-label="{label}" title="{text}">{sign}</summary>'
        f'<pre dir="auto">{text}</pre></details></td>'
    )


def summary(rows: Sequence[Row]) -> list[tuple]:
    """Per check (check, title, failed, could not be checked, not run, [(cause, how many)])."""
    found = []
    for check, title in checks_of(rows).items():
        results = [row.results[check] for row in rows if check in row.results]
        counts = Counter(result.status for result in results)
        causes = Counter(r.cause or "no known cause" for r in results if r.status == FAILED)
        found.append(
            (check, title, counts[FAILED], counts[UNKNOWN], counts[NOT_RUN], causes.most_common(3))
        )
    return found


def summary_row(facts: tuple) -> str:
    """A check's row of the page's summary."""
    check, title, *counts, causes = facts
    cells = [
        for_html(check),
        for_html(line(title)),
        *map(str, counts),
        for_html(causes_text(causes)),
    ]
    return "<tr>" + "".join(f"<td>{text}</td>" for text in cells) + "</tr>"


def causes_text(causes: list[tuple[str, int]]) -> str:
    """Causes with their numbers, in words."""
    return ", ".join(f"{line(cause)} ({count})" for cause, count in causes)


def summary_text(rows: Sequence[Row]) -> str:
    """The summary for a terminal: the checks that not everybody passed."""
    lines = []
    for check, _, failed, unknown, not_run, causes in summary(rows):
        counts = {"failed": failed, UNKNOWN: unknown, "not run": not_run}
        words = ", ".join(f"{count} {what}" for what, count in counts.items() if count)
        if words:
            lines.append(
                f"  {line(check)}: {words}" + (f": {causes_text(causes)}" if causes else "")
            )
    graded = sum(not row.error for row in rows)
    return "\n".join([f"graded: {graded} of {len(rows)}", *(lines or ["  every check passed"])])
