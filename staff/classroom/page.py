"""The matrix of a graded class, as one self-contained page."""

import re
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

from grading.hand_in.safe_text import for_html, line
from grading.results import FAILED, NOT_RUN, PASSED, UNKNOWN
from staff.classroom.marks import PENDING, UNGRADED, Mark, Row
from staff.classroom.summary import causes_text, columns_of, summary

TEMPLATE = Path(__file__).with_name("class_page.html")
LONGEST_NAME = 24  # characters of it that are shown; the title has all
OVERRIDDEN, NOT_ENTERED = "✎", "…"
# Status -> what a cell shows, and its class in the page.
SIGNS = {
    PASSED: ("✓", "passed"),
    FAILED: ("✗", "failed"),
    NOT_RUN: ("\u2013", "other"),
    UNKNOWN: ("?", "other"),
}


def as_page(rows: Sequence[Row]) -> str:
    """The matrix as a self-contained page; no text of a submission is markup in it."""
    columns = columns_of(rows)
    tasks = {task: list(names) for task, names in groupby(columns, task_of)}
    pending, ungraded = sum(row.pending for row in rows), sum(not row.report for row in rows)
    counts = [f"{len(rows) - ungraded} of {len(rows)} graded"]
    counts += [f"{ungraded - pending} {UNGRADED}"] if ungraded > pending else []
    counts += [f"{pending} {PENDING}"] if pending else []
    parts = {
        "COUNT": ", ".join(counts),
        "SUMMARY": "\n".join(map(summary_row, summary(rows))),
        "TASKS": "".join(
            f'<th colspan="{len(names) + 1}" scope="colgroup"><span>{for_html(task)}</span></th>'
            for task, names in tasks.items()
        ),
        "CHECKS": "".join(map(task_heads, tasks.values())),
        "ROWS": "\n".join(page_row(row, tasks) for row in rows),
        "MEANS": mean_row([row for row in rows if row.report], tasks),
    }
    template = TEMPLATE.read_text(encoding="utf-8")
    return re.sub(r"@([A-Z]+)@", lambda match: parts[match[1]], template)


def task_of(name: str) -> str:
    """The task of a check."""
    return name.partition("/")[0]


def task_heads(names: list[str]) -> str:
    """The heads of a task's columns: its checks and their sum."""
    heads = [(name, name.partition("/")[2]) for name in names]
    heads.append((f"sum of {task_of(names[0])}", "sum"))
    return "".join(
        f'<th scope="col" class="check"><button type="button" title="sort by {for_html(name)}">'
        f"{for_html(short)}</button></th>"
        for name, short in heads
    )


def page_row(row: Row, tasks: dict[str, list[str]]) -> str:
    """A submission's row of the matrix."""
    name = line(row.name)
    kinds = " ".join(kinds_of(row))
    opening = f'<tr class="{kinds}" data-search="{for_html(f"{name} {row.notes}".lower())}">'
    head = (
        f'<th scope="row" title="{for_html(name)}" data-value="{for_html(name.lower())}">'
        f"<bdi>{for_html(middle_cut(name))}</bdi></th>"
    )
    if not row.report:
        width = sum(len(names) + 1 for names in tasks.values()) + 1
        why = for_html(f"{PENDING if row.pending else UNGRADED}: {row.error}")
        cells = f'<td></td><td class="ungraded" colspan="{width}"><p>{why}</p></td>'
        return f"{opening}{head}{cells}</tr>"
    marks = {mark.name: mark for mark in row.marks}
    cells = [f'<td data-value="{row.points:g}">{row.points:g} / {row.possible:g}</td>']
    for names in tasks.values():
        found = [marks.get(each) for each in names]
        cells += [cell(row.name, mark) for mark in found]
        cells.append(sum_cell([mark for mark in found if mark]))
    notes = for_html(line(row.notes, 1000))
    cells.append(f'<td class="note" title="{notes}">{notes}</td>')
    return f"{opening}{head}{''.join(cells)}</tr>"


def kinds_of(row: Row) -> list[str]:
    """What the page's filter may select a row by."""
    statuses = {result.status for result in row.results.values()}
    found = {
        "ungraded-row": not row.report,
        "failed-row": FAILED in statuses,
        "unknown-row": UNKNOWN in statuses,
        "passed-row": statuses == {PASSED},
        "overridden-row": any(mark.overridden for mark in row.marks),
        "missing-row": bool(row.missing),
        "late-row": bool(row.late),
    }
    return [kind for kind, holds in found.items() if holds]


def cell(name: str, mark: Mark | None) -> str:
    """A check's or manual item's cell: its status, and the reason when hovered over or opened."""
    if not mark:
        return "<td></td>"
    comment = f"\n  comment: {mark.comment}" if mark.comment else ""
    if not mark.result:
        shown = NOT_ENTERED if mark.points is None else f"{mark.points:g}"
        text = for_html(f"{mark.name}: {shown} of {mark.possible:g}{comment}")
        value = -1 if mark.points is None else mark.points
        return f'<td class="manual" data-value="{value:g}" title="{text}">{shown}</td>'
    sign, kind = SIGNS[mark.result.status]
    changed = f"\n  overridden: {mark.points:g} points" if mark.overridden else ""
    text = for_html(f"{mark.result.text()}{changed}{comment}", 6000)
    label = for_html(f"{mark.result.status}: {mark.name} of {line(name)}")
    extra = OVERRIDDEN if mark.overridden else "*" if mark.comment else ""
    opening = f'<td class="{kind}{" overridden" if mark.overridden else ""}"'
    opening += f' data-value="{mark.points:g}"'
    if mark.result.status == PASSED and not extra:
        return f'{opening} title="{text}">{sign}</td>'
    return (
        f'{opening}><details name="open">'
        f'<summary aria-label="{label}" title="{text}">{sign}{extra}</summary>'
        f'<pre dir="auto">{text}</pre></details></td>'
    )


def sum_cell(marks: list[Mark]) -> str:
    """The sum of a task's points."""
    points = sum(mark.points or 0 for mark in marks)
    possible = sum(mark.possible for mark in marks)
    return f'<td class="sum" data-value="{points:g}">{points:g}/{possible:g}</td>'


def mean_row(rows: list[Row], tasks: dict[str, list[str]]) -> str:
    """The mean points of what was graded, in all, by check and by task."""
    if not rows:
        return ""
    found = [{mark.name: mark.points or 0.0 for mark in row.marks} for row in rows]
    cells = [f"<td>{sum(row.points for row in rows) / len(rows):.1f}</td>"]
    for names in tasks.values():
        means = [sum(each.get(name, 0.0) for each in found) / len(rows) for name in names]
        cells += [f"<td>{mean:.1f}</td>" for mean in means]
        cells.append(f'<td class="sum">{sum(means):.1f}</td>')
    return f'<tr><th scope="row">mean</th>{"".join(cells)}<td></td></tr>'


def middle_cut(name: str, most: int = LONGEST_NAME) -> str:
    """A name, cut in its middle if it is long."""
    if len(name) <= most:
        return name
    return f"{name[: most // 2]}…{name[len(name) - most // 2 + 1 :]}"


def summary_row(facts: tuple) -> str:
    """A check's row of the page's summary."""
    check, title, *counts, causes = facts
    cells = [for_html(check), for_html(line(title)), *map(str, counts)]
    cells.append(for_html(causes_text(causes)))
    return "<tr>" + "".join(f"<td>{text}</td>" for text in cells) + "</tr>"
