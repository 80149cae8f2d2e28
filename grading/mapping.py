"""Which commands a submission's tasks are run by: its grading.yaml, a given file, or `auto`."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from common.errors import UserError
from common.tasks import SCRIPTS

import yaml

AUTO = "auto"
LARGEST = 65536  # bytes of a grading.yaml
LONGEST = 4096  # characters of a script's path, or of a task's arguments
DEEPEST = 4  # levels of nesting in a grading.yaml
KEYS = ("script", "arguments", "environment", "total_batch", "override")
DEFAULT = "default"  # the entry for what the tasks' own entries leave open
TOTAL_BATCHES = ("16", "64")


class Entry(NamedTuple):
    """A task's row of a mapping, with texts as values, and where it is from; {} for the default."""

    facts: dict[str, str]
    source: str


@dataclass(frozen=True)
class Mapping:
    """The rows of the submission's own grading.yaml and those of a given file, by task.

    With `auto` tasks that have neither are called as their scripts' --help suggests.
    """

    own: dict[str, dict[str, str]] = field(default_factory=dict)
    given: dict[str, dict[str, str]] = field(default_factory=dict)
    file: str = ""
    auto: bool = False

    def entry(self, task: str) -> Entry:
        """A task's row: the submission's own, unless the given file's has `override: yes`."""
        own, given = row_of(self.own, task), row_of(self.given, task)
        if given and (not own or is_yes(given.get("override", ""))):
            overridden = ", in place of its own grading.yaml" if own else ""
            return Entry(given, f"{self.file}{overridden}")
        return Entry(own, "its own grading.yaml" if own else "")


def row_of(rows: dict[str, dict[str, str]], task: str) -> dict[str, str]:
    """A task's row of one file, completed by its default row."""
    return {**rows.get(DEFAULT, {}), **rows.get(task, {})}


def is_yes(text: str) -> bool:
    """Whether a text of YAML means yes."""
    return text.lower() in ("yes", "true", "on", "1")


class Loader(yaml.BaseLoader):
    """Reads YAML of few levels without aliases, every scalar as text, whatever its tag."""

    def __init__(self, stream):
        super().__init__(stream)
        self.depth = 0

    def compose_node(self, parent, index):
        """One node and those inside it; YAMLError for an alias, or for too many levels."""
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError("aliases (*name) are not allowed; write the text out")
        self.depth += 1
        if self.depth > DEEPEST:
            raise yaml.YAMLError(f"more than {DEEPEST} levels of nesting")
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node


def read_mapping(submission: Path, given: Path | str | None = None) -> Mapping:
    """The Mapping of a submission; `given` is what --mapping was given: a file, or "auto".

    Raises UserError for a file that does not exist, or is not a mapping.
    """
    own = submission / "grading.yaml"
    rows = read_rows(own) if own.is_file() and not own.is_symlink() else {}
    if given is None or str(given) == AUTO:
        return Mapping(rows, auto=given is not None)
    if not Path(given).is_file():
        raise UserError(f"--mapping {given}: there is no such file; give a file, or {AUTO}")
    return Mapping(rows, read_rows(Path(given)), file=Path(given).name)


def read_rows(file: Path) -> dict[str, dict[str, str]]:
    """The rows of a mapping's file, by task; UserError if it is not one."""
    try:
        return parse(file)
    except (OSError, ValueError, AttributeError, yaml.YAMLError) as error:
        raise UserError(
            f"{file.name} is not a valid mapping of tasks to commands: {error}"
        ) from None


def parse(file: Path) -> dict[str, dict[str, str]]:
    """The rows in a file; ValueError, AttributeError or YAMLError if it is not a mapping."""
    with file.open("rb") as opened:
        text = opened.read(LARGEST + 1)
    if len(text) > LARGEST:
        raise ValueError(f"it is larger than {LARGEST:,} bytes")
    found = yaml.load(text.decode(), Loader) or {}
    for task, row in found.items():
        if task not in (*SCRIPTS, DEFAULT):
            raise ValueError(f"there is no task {task!r}: {', '.join(SCRIPTS)}, or {DEFAULT}")
        if not isinstance(row, dict) or not all(isinstance(text, str) for text in row.values()):
            raise ValueError(f"{task} needs `script:` and `arguments:`")
        if unknown := set(row) - set(KEYS):
            raise ValueError(f"{task}: {', '.join(sorted(unknown))}: use {', '.join(KEYS)}")
        if any(len(text) > LONGEST for text in row.values()):
            raise ValueError(f"{task}: a text of more than {LONGEST:,} characters")
        if row.get("total_batch", "16") not in TOTAL_BATCHES:
            raise ValueError(f"{task}: total_batch: choose {' or '.join(TOTAL_BATCHES)}")
    return found
