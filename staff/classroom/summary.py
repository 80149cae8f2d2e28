"""What a class got right and wrong, counted by check."""

from collections import Counter
from collections.abc import Sequence

from grading.hand_in.safe_text import line
from grading.results import FAILED, NOT_RUN, UNKNOWN
from staff.classroom.marks import MANUAL, Row

STATUSES = {FAILED: "failed", UNKNOWN: UNKNOWN, NOT_RUN: "not run"}


def columns_of(rows: Sequence[Row]) -> dict[str, str]:
    """Check or manual item -> title, in the reports' order, manual items last."""
    found = {mark.name: mark.title for row in rows for mark in row.marks}
    return dict(sorted(found.items(), key=lambda item: item[0].startswith(f"{MANUAL}/")))


def summary(rows: Sequence[Row]) -> list[tuple]:
    """Per check (check, title, failed, could not be checked, not run, [(cause, how many)])."""
    found = []
    titles = {result.check: result.title for row in rows for result in row.results.values()}
    for check, title in titles.items():
        results = [row.results[check] for row in rows if check in row.results]
        counts = Counter(result.status for result in results)
        causes = Counter(r.cause or "no known cause" for r in results if r.status == FAILED)
        numbers = (counts[status] for status in STATUSES)
        found.append((check, title, *numbers, causes.most_common(3)))
    return found


def causes_text(causes: list[tuple[str, int]]) -> str:
    """Causes with their numbers, in words."""
    return ", ".join(f"{line(cause)} ({count})" for cause, count in causes)


def summary_text(rows: Sequence[Row]) -> str:
    """The summary for a terminal: the checks that not everybody passed."""
    lines, facts = [graded_text(rows)], summary(rows)
    for check, _, *counts, causes in facts:
        found = zip(counts, STATUSES.values(), strict=True)
        words = ", ".join(f"{count} {what}" for count, what in found if count)
        if words:
            lines.append(
                f"  {line(check)}: {words}" + (f": {causes_text(causes)}" if causes else "")
            )
    if len(lines) == 1:
        lines.append("  every check passed" if facts else "  no check was made")
    return "\n".join(lines)


def graded_text(rows: Sequence[Row]) -> str:
    """How many were graded, in words."""
    graded, pending = sum(bool(row.report) for row in rows), sum(row.pending for row in rows)
    waiting = f" ({pending} not graded yet)" if pending else ""
    return f"graded: {graded} of {len(rows)}{waiting}"
