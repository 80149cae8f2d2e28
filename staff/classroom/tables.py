"""The tables of a graded class: grades.csv, grades.json and matrix.html."""

import csv
import io
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from common.files import write_whole
from grading.hand_in.safe_text import for_csv
from staff.classroom.marks import Mark, Row
from staff.classroom.page import as_page
from staff.classroom.summary import columns_of


def write_tables(out: Path, rows: Sequence[Row]) -> list[Path]:
    """Write the three files, each whole or not at all; returns their paths."""
    texts = {
        "grades.csv": as_csv(rows),
        "grades.json": as_json(rows),
        "matrix.html": as_page(rows),
    }
    out.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        write_whole(out / name, text)
    return [out / name for name in texts]


def as_csv(rows: Sequence[Row]) -> str:
    """A row per submission, a column per check and manual item."""
    columns, text = columns_of(rows), io.StringIO()
    table = csv.writer(text, quoting=csv.QUOTE_NONNUMERIC)
    heads = ["submission", "points", "possible", *columns, "late deduction", "note"]
    table.writerow(map(for_csv, heads))
    for row in rows:
        marks = {mark.name: mark.points for mark in row.marks}
        points = ["" if marks.get(name) is None else marks[name] for name in columns]
        totals = [row.points, row.possible] if row.report else ["", ""]
        cells = [row.name, *totals, *points, row.deducted if row.report else "", row.notes]
        table.writerow(map(for_csv, cells))
    return text.getvalue()


def as_json(rows: Sequence[Row]) -> str:
    """The same as JSON, with status and cause of every check."""
    return json.dumps({"submissions": [row_facts(row) for row in rows]}, indent=1) + "\n"


def row_facts(row: Row) -> dict:
    """A submission in grades.json."""
    marks = row.marks
    return {
        "submission": row.name,
        "points": row.points if row.report else None,
        "possible": row.possible if row.report else None,
        "error": row.error,
        "note": row.note,
        "comment": row.comment,
        "late": asdict(row.late) | {"points": row.deducted} if row.late else None,
        "students": [student._asdict() for student in row.students],
        "checks": {mark.name: check_facts(mark) for mark in marks if mark.result},
        "manual": {
            mark.name.partition("/")[2]: {
                "points": mark.points,
                "possible": mark.possible,
                "comment": mark.comment,
            }
            for mark in row.manual
        },
    }


def check_facts(mark: Mark) -> dict:
    """A check in grades.json."""
    result = mark.result
    assert result
    facts = {"status": result.status, "points": mark.points, "cause": result.cause}
    if mark.overridden:
        facts["overridden"] = result.points
    return facts | ({"comment": mark.comment} if mark.comment else {})
