"""What Gradescope's export says about submissions: who handed them in, when, and when due."""

import sys
from collections.abc import Iterable, Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, NamedTuple

from grading.hand_in.safe_text import line
from staff.classroom.course import parse_moment
from staff.classroom.marks import Student

import yaml

NAMES = ("submission_metadata.yml", "submission_metadata.yaml", "metadata.yml", "metadata.yaml")


class Facts(NamedTuple):
    """What is known of a submission; None where nothing is."""

    students: tuple[Student, ...] = ()
    submitted: datetime | None = None
    due: datetime | None = None


FAST = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # an export may have megabytes


class Loader(FAST):  # pyright: ignore[reportGeneralTypeIssues]
    """Reads Ruby's objects as plain mappings."""


def construct_plainly(loader: Loader, _: str, node: yaml.Node) -> Any:
    """An unknown tag's content without the tag."""
    if isinstance(node, yaml.MappingNode):
        return loader.construct_mapping(node, deep=True)
    if isinstance(node, yaml.SequenceNode):
        return loader.construct_sequence(node, deep=True)
    return loader.construct_scalar(node)  # pyright: ignore[reportArgumentType]


Loader.add_multi_constructor("!", construct_plainly)


def read_metadata(folder: Path) -> dict[str, Facts]:
    """Name of an entry of the folder -> Facts; empty, with a warning, for what cannot be read."""
    path = next((folder / name for name in NAMES if (folder / name).is_file()), None)
    if not path:
        return {}
    try:
        content = yaml.load(path.read_text(encoding="utf-8"), Loader)
        return {str(name): facts_of(plain(each)) for name, each in content.items()}
    except (OSError, ValueError, yaml.YAMLError, AttributeError, RecursionError) as error:
        print(f"{path} is left out: it cannot be read ({line(error)})", file=sys.stderr)
        return {}


def plain(facts: Any) -> dict:
    """A mapping without the colons that Ruby's keys begin with; empty for anything else."""
    return {str(k).lstrip(":"): v for k, v in facts.items()} if isinstance(facts, dict) else {}


def facts_of(facts: dict) -> Facts:
    """One submission's Facts; the last due date of its students counts."""
    people = [plain(each) for each in listed(facts.get("submitters") or facts.get("users"))]
    students = tuple(
        Student(*(str(person.get(key) or "") for key in Student._fields)) for person in people
    )
    own = [each for person in people for each in dues(person, plain(person.get("assignment")))]
    shared = list(dues(facts, plain(facts.get("assignment"))))
    return Facts(students, moment(facts.get("created_at")), max(own or shared, default=None))


def listed(value: Any) -> list:
    """A list, or an empty one in place of anything else."""
    return value if isinstance(value, list) else []


def dues(*parts: dict) -> Iterator[datetime]:
    """The due dates in mappings."""
    found: Iterable = (moment(part.get("due_date")) for part in parts)
    return (each for each in found if each)


def moment(value: Any) -> datetime | None:
    """A moment of the export; without a time zone it is UTC."""
    if isinstance(value, dict):  # a Ruby object
        value = plain(value).get("utc")
    return parse_moment(value, timezone.utc)
