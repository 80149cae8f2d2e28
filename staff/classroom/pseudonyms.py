"""Stable pseudonyms for a class; the key stays in a file that only its owner can read."""

import csv
import io
import json
import os
import re
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from common.files import write_whole
from grading.hand_in.safe_text import for_csv
from grading.results import Report
from staff.classroom.entries import aliases, shown
from staff.classroom.marks import Row
from staff.classroom.written import read_csv

NAME = "pseudonyms.csv"
SHORTEST = 3  # characters of a name that is replaced wherever it occurs in a text
KEPT = ("check", "title", "status", "cause", "see")  # the grader's words in a result


def pseudonyms_of(out: Path, names: Iterable[str], wanted: bool = True) -> dict[str, str]:
    """Name -> pseudonym; new names get one, if `wanted`, and old ones keep theirs."""
    path, names = out / NAME, list(names)
    known = aliases(names, {})
    rows = read_csv(path, ["pseudonym", "submission"]) if path.exists() else []
    kept = {row["submission"]: row["pseudonym"] for _, row in rows}
    found = {known[written]: kept[written] for written in kept if written in known}
    if not wanted or set(found) == set(names):
        return found
    for name in names:
        while name not in found:
            new = f"student-{secrets.token_hex(3)}"
            if new not in (*kept.values(), *found.values()):
                found[name] = new
    gone = {written: each for written, each in kept.items() if written not in known}
    write_key(path, {**gone, **{str(for_csv(shown(name))): found[name] for name in names}})
    return found


def write_key(path: Path, key: Mapping[str, str]) -> None:
    """Write the key, readable by its owner alone from the start."""
    text = io.StringIO()
    table = csv.writer(text)
    table.writerow(["pseudonym", "submission"])
    table.writerows(sorted((pseudonym, name) for name, pseudonym in key.items()))
    before = os.umask(0o077)
    try:
        write_whole(path, text.getvalue())
    finally:
        os.umask(before)


def anonymous(row: Row, name: str, pseudonym: str) -> Row:
    """A row under its pseudonym: also in texts, where its name or its students' occur."""
    words = {name, shown(name)} | {part for student in row.students for part in student}
    long = sorted((word for word in words if len(word) >= SHORTEST), key=len, reverse=True)
    pattern = re.compile("|".join(rf"(?<!\w){re.escape(word)}(?!\w)" for word in long) or r"(?!)")

    def hide(facts: Any, key: str = "") -> Any:
        if isinstance(facts, str):
            return facts if key in KEPT else pattern.sub(pseudonym, facts)
        if isinstance(facts, list):
            return [hide(each) for each in facts]
        return {k: hide(v, k) for k, v in facts.items()} if isinstance(facts, dict) else facts

    report = row.report
    if report:
        facts = hide(json.loads(report.to_json())) | {"submission": pseudonym}
        report = Report.from_json(json.dumps(facts))
    error, note = hide(row.error), hide(row.note)
    return replace(row, name=pseudonym, report=report, error=error, note=note, students=())
