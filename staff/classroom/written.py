"""Reads the files that instructors write, with the line of everything in them."""

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from common.errors import UserError
from grading.hand_in.safe_text import line

import yaml

MOST_PROBLEMS = 20


class Written(NamedTuple):
    """A value of a YAML file and its line; the values of a mapping are Written, too."""

    value: Any
    line: int


class Problems:
    """What is wrong in a file, each with its line, raised together."""

    def __init__(self, path: Path):
        self.path = path
        self.found = []

    def add(self, number: int, what: str) -> None:
        """Record a problem and its fix."""
        self.found.append(f"{self.path}, line {number}: {what}")

    def check(self) -> None:
        """Raise UserError if there is any."""
        if self.found:
            more = len(self.found) - MOST_PROBLEMS
            rest = [f"... and {more} more"] if more > 0 else []
            raise UserError("\n".join([*self.found[:MOST_PROBLEMS], *rest]))


def read_text(path: Path) -> str:
    """A file's text; UserError if it cannot be read."""
    try:
        return path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise UserError(f"{path}: cannot read it: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: save it as UTF-8 ({error.reason})") from None


def read_yaml(path: Path) -> Written:
    """A YAML file's content, with lines; an empty mapping for an empty file."""
    try:
        node = yaml.compose(read_text(path), Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        number = error.problem_mark.line + 1 if error.problem_mark else 1
        raise UserError(f"{path}, line {number}: not valid YAML: {error.problem}") from None
    except yaml.YAMLError as error:
        raise UserError(f"{path}: not valid YAML: {line(error)}") from None
    problems = Problems(path)
    content = written(node, problems) if node else Written({}, 1)
    problems.check()
    return content


def written(node: yaml.Node, problems: Problems) -> Written:
    """A node's value with its line."""
    number = node.start_mark.line + 1
    if isinstance(node, yaml.MappingNode):
        found = {}
        for key, value in node.value:
            name = key.value if isinstance(key, yaml.ScalarNode) else str(key.tag)
            if name in found:
                problems.add(key.start_mark.line + 1, f"{line(name)!r} is given twice; remove one")
            found[name] = Written(written(value, problems).value, key.start_mark.line + 1)
        return Written(found, number)
    if isinstance(node, yaml.SequenceNode):
        return Written([written(each, problems) for each in node.value], number)
    try:
        return Written(yaml.SafeLoader("").construct_object(node), number)
    except (yaml.YAMLError, ValueError) as error:
        problems.add(number, f"{line(node.value)!r}: {line(error)}; put it in quotes")
        return Written(None, number)


def read_csv(path: Path, columns: Sequence[str]) -> list[tuple[int, dict[str, str]]]:
    """A table's rows as (line, column -> text); UserError where one of `columns` is missing."""
    text = read_text(path)
    try:
        table = csv.DictReader(io.StringIO(text, newline=""), restval="")
        heads = [head.strip() for head in table.fieldnames or []]
        table.fieldnames = heads
        rows = [(table.line_num, row) for row in table]
    except csv.Error as error:
        raise UserError(f"{path}: not a valid CSV file: {error}") from None
    if missing := [column for column in columns if column not in heads]:
        raise UserError(
            f"{path}, line 1: no column {', '.join(missing)}; it has {line(', '.join(heads))}"
        )
    return [
        (number, {head: str(cell).strip() for head, cell in row.items() if head})
        for number, row in rows
        if any(cell for cell in row.values())
    ]


def as_points(text: Any, most: float) -> float | None:
    """A number of points from 0 to `most`; None if it is not one. `full` is all of them."""
    if text == "full":
        return most
    try:
        points = float(text)
    except (TypeError, ValueError):
        return None
    return points if not isinstance(text, bool) and 0 <= points <= most else None
