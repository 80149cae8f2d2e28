"""manual.csv or manual.yaml: the points of the rubric's manual items, entered by people.

    submission,item,points,comment                 ann:
    ann,reasoning,8,"Clear; no error bars."          reasoning: {points: 8, comment: "Clear ..."}

A line whose points are empty is not entered yet. Where neither file is there, the grader writes a
manual.csv with a line for each submission and item; it never changes one that is there.
"""

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from common.errors import UserError
from common.files import write_whole
from grading.hand_in.safe_text import for_csv, line
from grading.rubric import ManualItem
from staff.classroom.entries import nearest, shown
from staff.classroom.marks import MANUAL, Mark
from staff.classroom.overrides import mapping
from staff.classroom.written import Problems, as_points, read_csv, read_yaml

TABLE, DOCUMENT = "manual.csv", "manual.yaml"
COLUMNS = ("submission", "item", "points", "comment")


def read_manual(
    out: Path, names: Mapping[str, str], items: Sequence[ManualItem]
) -> dict[str, tuple[Mark, ...]]:
    """Submission -> marks of all manual items, from the file in `out`, if there is one.

    Raises UserError with every line that is wrong, or if both files are there.
    """
    table, document = out / TABLE, out / DOCUMENT
    if table.exists() and document.exists():
        raise UserError(f"{out} holds {TABLE} and {DOCUMENT}; remove one of them")
    problems = Problems(table if table.exists() else document)
    known = {item.name: item for item in items}
    entered = {}
    for number, name, item, points, comment in lines_of(table, document, problems):
        if name not in names:
            problems.add(number, f"no submission {line(name)!r}; {nearest(name, names)}")
        elif item not in known:
            problems.add(number, f"no manual item {line(item)!r}; {nearest(item, list(known))}")
        elif (names[name], item) in entered:
            problems.add(number, f"{line(name)}: {item} is given twice; remove one")
        else:
            given = points not in ("", None)
            value = as_points(points, known[item].points) if given else None
            if given and value is None:
                most = f"give 0 to {known[item].points:g}, or nothing if not judged yet"
                problems.add(number, f"{item} of {line(name)}: {line(points)} points; {most}")
            entered[names[name], item] = (value, str(comment or ""))
    problems.check()
    return {
        name: tuple(mark_of(item, *entered.get((name, item.name), (None, ""))) for item in items)
        for name in set(names.values())
    }


def mark_of(item: ManualItem, points: float | None, comment: str) -> Mark:
    """An item's mark."""
    return Mark(f"{MANUAL}/{item.name}", item.title, item.points, points, comment)


def lines_of(table: Path, document: Path, problems: Problems) -> Iterable[tuple]:
    """(line, submission, item, points, comment) of everything in the one file that is there."""
    if table.exists():
        for number, row in read_csv(table, COLUMNS[:3]):
            yield number, *(row.get(column, "") for column in COLUMNS)
    elif document.exists():
        for name, part in mapping(read_yaml(document), "the file", problems).items():
            for item, each in mapping(part, line(name), problems).items():
                facts = mapping(each, f"{item} of {line(name)}", problems)
                values = {key: value for key, (value, _) in facts.items()}
                yield each.line, name, item, values.get("points"), values.get("comment")


def write_template(out: Path, names: Iterable[str], items: Sequence[ManualItem]) -> Path | None:
    """Write a manual.csv to fill in, unless there is a file or nothing to enter; its path."""
    path = out / TABLE
    if not items or path.exists() or (out / DOCUMENT).exists():
        return None
    text = io.StringIO()
    table = csv.writer(text)
    table.writerow(COLUMNS)
    for name in names:
        table.writerows([for_csv(shown(name)), item.name, "", ""] for item in items)
    write_whole(path, text.getvalue())
    return path
