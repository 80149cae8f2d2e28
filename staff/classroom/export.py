"""Writes a graded class's points as CSV files to upload to Canvas or Gradescope.

    python -m staff export --out grades --canvas EXPORT.csv --column "Homework 3 (901234)"
    python -m staff export --out grades --gradescope EXPORT.csv

EXPORT.csv is the platform's own export of its grades, which has the students' ids. Each student is
matched with a submission by email, id or name; those that are not, on either side, are listed.
"""

import argparse
import csv
import io
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from common.errors import UserError
from common.files import write_whole
from grading.hand_in.safe_text import for_csv, line
from staff.classroom.written import Problems, read_csv

DESCRIPTION = "Write a graded class's points as CSV files to upload to Canvas or Gradescope."
CANVAS_COLUMNS = ("Student", "ID", "SIS User ID", "SIS Login ID", "Section")
CANVAS_IDS = ("ID", "SIS User ID", "SIS Login ID")
GRADESCOPE_IDS = ("SID", "Email")
NAMES = ("First Name", "Last Name", "Name", "Student")
POSSIBLE = "points possible"  # what Canvas's second row begins with
OF_CANVAS = re.compile(r"[^_]+_(?:late_)?(\d+)_\d+_.*", re.IGNORECASE)  # of its bulk download
OF_PACK = re.compile(r"([^\W_]+)_([^\W\d_][\w-]*)")  # NETID_First_Last
STUDENTS = "students.csv"  # in the --out folder: submission, id


def keys_of(texts: Sequence[str]) -> set[str]:
    """Texts in the form in which they are compared: letters and digits, in lower case."""
    plain = ("".join(c for c in text.casefold() if c.isalnum()) for text in texts)
    return {each for each in plain if each}


def names_of(row: Mapping[str, str]) -> list[str]:
    """The forms of a student's name in a row of an export: "Doe, Jane" is "Jane Doe", too."""
    parts = [row.get(key, "") for key in NAMES]
    first, last, *whole = parts
    found = [f"{first} {last}", f"{last} {first}"] if first or last else []
    for name in filter(None, whole):
        family, _, given = name.partition(",")
        found += [name, f"{given} {family}"]
    return found


def submission_keys(facts: Mapping, own: Mapping[str, list[str]]) -> list[set[str]]:
    """What identifies each student of a submission: one set for each of them."""
    name = facts["submission"]
    if name in own:
        return [keys_of([each]) for each in own[name]]
    if facts["students"]:
        return [keys_of(list(student.values())) for student in facts["students"]]
    parts = OF_CANVAS.fullmatch(name) or OF_PACK.fullmatch(name)
    return [keys_of([name, *(parts.groups() if parts else ())])]


def matched(
    submissions: Sequence[Mapping], rows: Sequence[Mapping], ids: Sequence[str], own: Mapping
) -> tuple[dict[int, Mapping], list[str]]:
    """(number of a row of the export -> its submission, what is wrong with the others).

    A student of a submission is matched by ids, and by name only if no id fits; one that fits
    several students fits none.
    """
    given = [[row.get(key, "") for key in ids] for row in rows]
    by_id = [keys_of([*each, *(text.partition("@")[0] for text in each)]) for each in given]
    by_name = [keys_of(names_of(row)) for row in rows]
    found, problems = {}, []
    for facts in submissions:
        for keys in submission_keys(facts, own):
            fits = [i for i, each in enumerate(by_id) if each & keys]
            fits = fits or [i for i, each in enumerate(by_name) if each & keys]
            name = line(facts["submission"])
            if len(fits) != 1:
                why = f"fits {len(fits)} students" if fits else "fits no student of the export"
                problems.append(f"{name}: {why}; name its id in {STUDENTS}")
            elif fits[0] in found:
                problems.append(f"{name}: another submission has the same student")
            else:
                found[fits[0]] = facts
    problems += [
        f"no submission of {line((names_of(row) or ['?'])[0])}"
        for i, row in enumerate(rows)
        if i not in found
    ]
    return found, problems


def as_canvas(
    heads: Sequence[str], rows: Sequence[dict], submissions: Sequence[Mapping], column: str, own
) -> tuple[str, list[str]]:
    """(canvas.csv, what is not matched): the ids of the export, and one assignment's points."""
    if not column:
        known = [head for head in heads if head not in CANVAS_COLUMNS]
        raise UserError(f"--column: name the assignment's column: {line(', '.join(known), 600)}")
    first = [row for row in rows if row["Student"].lower().startswith(POSSIBLE)]
    students = [row for row in rows if row not in first and (row["Student"] or row["ID"])]
    found, problems = matched(submissions, students, CANVAS_IDS, own)
    kept = [head for head in CANVAS_COLUMNS if head in heads]
    lines = [[*kept, column]]
    possible = max((facts["possible"] or 0 for facts in submissions), default=0)
    for row in first or [dict.fromkeys(kept, "") | {"Student": "Points Possible"}]:
        lines.append(["    Points Possible", *(row[head] for head in kept[1:])])
        lines[-1].append(row.get(column) or f"{possible:g}")
    lines += [
        [*(row[head] for head in kept), points_text(found[i])]
        for i, row in enumerate(students)
        if i in found and found[i]["points"] is not None
    ]
    return as_text(lines), problems


def as_gradescope(
    heads: Sequence[str], rows: Sequence[dict], submissions: Sequence[Mapping], own
) -> tuple[str, list[str]]:
    """(gradescope.csv, what is not matched): names and ids of the export, and the points."""
    found, problems = matched(submissions, rows, GRADESCOPE_IDS, own)
    kept = [head for head in (*NAMES[:3], *GRADESCOPE_IDS) if head in heads]
    lines = [[*kept, "Total Score", "Max Points"]]
    lines += [
        [*(row[head] for head in kept), points_text(found[i]), f"{found[i]['possible']:g}"]
        for i, row in enumerate(rows)
        if i in found and found[i]["points"] is not None
    ]
    return as_text(lines), problems


def points_text(facts: Mapping) -> str:
    """A submission's points, with at most two decimals."""
    return f"{round(facts['points'], 2):g}"


def as_text(lines: Sequence[Sequence[str]]) -> str:
    """Lines as CSV; a cell that the export did not begin as a formula cannot become one."""
    text = io.StringIO()
    table = csv.writer(text)
    for cells in lines:
        table.writerow([cell if cell.startswith("    ") else for_csv(cell) for cell in cells])
    return text.getvalue()


def read_export(path: Path, needed: Sequence[str]) -> tuple[list[str], list[dict[str, str]]]:
    """(columns, rows) of a platform's export; UserError if it lacks what it `needed`."""
    rows = [row for _, row in read_csv(path, needed)]
    if not rows:
        raise UserError(f"{path}: no student in it; export the grades again")
    return list(rows[0]), rows


def read_students(path: Path, submissions: Sequence[Mapping]) -> dict[str, list[str]]:
    """Submission -> its students' ids, as students.csv says, if it is there."""
    found, problems = {}, Problems(path)
    known = {str(for_csv(facts["submission"])): facts["submission"] for facts in submissions}
    known |= {facts["submission"]: facts["submission"] for facts in submissions}
    for number, row in read_csv(path, ["submission", "id"]) if path.exists() else []:
        if row["submission"] not in known:
            problems.add(number, f"no submission {line(row['submission'])!r} in grades.json")
        else:
            found.setdefault(known[row["submission"]], []).append(row["id"])
    problems.check()
    return found


def export(args: argparse.Namespace) -> Iterator[tuple[str, str, list[str]]]:
    """The files to write: (name, content, what is not matched)."""
    try:
        text = (args.out / "grades.json").read_text(encoding="utf-8")
    except OSError as error:
        raise UserError(
            f"{args.out / 'grades.json'}: {error.strerror}; grade the class first, with --out"
        ) from None
    submissions = json.loads(text)["submissions"]
    own = read_students(args.out / STUDENTS, submissions)
    if args.canvas:
        heads, rows = read_export(args.canvas, ["Student", "ID"])
        yield "canvas.csv", *as_canvas(heads, rows, submissions, args.column, own)
    if args.gradescope:
        heads, rows = read_export(args.gradescope, ["Email"])
        yield "gradescope.csv", *as_gradescope(heads, rows, submissions, own)


def main(argv: list[str] | None = None) -> int:
    """Write the files; returns the exit code: 1 if somebody is not matched."""
    parser = argparse.ArgumentParser(prog="python -m staff export", description=DESCRIPTION)
    add = parser.add_argument
    add("--out", type=Path, default=Path("grades"), help="where the grades are (default: grades)")
    add("--canvas", type=Path, metavar="EXPORT", help="Canvas's export of its gradebook")
    add("--column", default="", help="the assignment's column in it, such as 'Homework 3 (901234)'")
    add("--gradescope", type=Path, metavar="EXPORT", help="Gradescope's export of its grades")
    args = parser.parse_args(argv)
    if not args.canvas and not args.gradescope:
        raise UserError("give --canvas EXPORT or --gradescope EXPORT, or both")
    wrong = 0
    for name, content, problems in export(args):
        write_whole(args.out / name, content)
        print(f"wrote {args.out / name}")
        for problem in problems:
            print(f"  not matched: {problem}")
        wrong += len(problems)
    return int(wrong > 0)
