"""What a submission of the gallery is made of, and how it is built into a folder."""

import ast
import inspect
import re
import shutil
from pathlib import Path
from typing import NamedTuple

from common.tasks import SCRIPTS

ROOT = Path(__file__).parents[2]
MARKER = re.compile(r"^[ \t]*# (BEGIN |END |)SOLUTION.*\n", re.MULTILINE)
LEFT_OUT = shutil.ignore_patterns("__pycache__", "cached_*", ".*")
MAIN = "def main(args, world):\n"


class Edit(NamedTuple):
    """`new` in place of `old`, which occurs exactly once in `file` when the edit's turn comes."""

    file: str
    old: str
    new: str


class Function(NamedTuple):
    """`source` in place of the whole top-level function called `name` in `file`."""

    file: str
    name: str
    source: str


class File(NamedTuple):
    """A file that the submission has besides."""

    file: str
    text: str


class Move(NamedTuple):
    """A file under another path."""

    file: str
    to: str


class Variant(NamedTuple):
    """One submission, and what grading must say of it.

    `task` is the task it is about ("task2a"); `edits` turn this repository's solution, or the
    files in `folder` (beside this module), into it. A wrong one fails the checks in `fails`, the
    first with the `cause`; a right one has neither. `note` is one line: what it does. `needs` is
    a module that must be installed to run it, `mapping` what --mapping is given.
    """

    name: str
    task: str
    edits: tuple = ()
    fails: tuple[str, ...] = ()
    cause: str = ""
    note: str = ""
    folder: str = ""
    needs: str = ""
    mapping: str = ""


def script(task):
    """A task's script, as a submission calls it."""
    return SCRIPTS[task].script


def replaced(file, code, name="average_gradients"):
    """Our function `code` in place of the one called `name` in `file`."""
    text = inspect.getsource(code)
    return Function(file, name, text.replace(f"def {code.__name__}(", f"def {name}(", 1))


def begun_with(task, code):
    """A task whose main calls our function `code(args, world)` before anything else."""
    call = f"    {code.__name__}(args, world)\n"
    return Edit(script(task), MAIN, f"{inspect.getsource(code)}\n\n{MAIN}{call}")


def first_of_all(task, code):
    """A task that calls our function `code()` before it imports anything."""
    first = "from common.gradients import flat_gradients\n"
    return Edit(script(task), first, f"{inspect.getsource(code)}\n\n{code.__name__}()\n\n{first}")


def build(variant, destination):
    """Make a variant's submission in the folder `destination`, which must not be there yet."""
    destination = Path(destination)
    if variant.folder:
        shutil.copytree(Path(__file__).with_name(variant.folder), destination, ignore=LEFT_OUT)
    else:
        copy_solution(destination)
    for edit in variant.edits:
        path = destination / edit.file
        if isinstance(edit, Move):
            (destination / edit.to).parent.mkdir(exist_ok=True)
            path.rename(destination / edit.to)
        elif isinstance(edit, File):
            path.write_text(edit.text)
        elif isinstance(edit, Function):
            path.write_text(with_function(path.read_text(), edit))
        else:
            path.write_text(with_edit(path.read_text(), edit))


def copy_solution(destination):
    """Copy what a submission holds of this repository, without the marks of the solution."""
    destination.mkdir(parents=True)
    for folder in ("common", *sorted(path.name for path in ROOT.glob("task*/"))):
        shutil.copytree(ROOT / folder, destination / folder, ignore=LEFT_OUT)
    for path in destination.rglob("*.py"):
        path.write_text(MARKER.sub("", path.read_text()))


def with_edit(text, edit):
    """A file's text after an Edit."""
    found = text.count(edit.old)
    assert found == 1, f"{edit.file}: {edit.old!r} occurs {found} times"
    return text.replace(edit.old, edit.new)


def with_function(text, edit):
    """A file's text after a Function."""
    nodes = [n for n in ast.parse(text).body if getattr(n, "name", "") == edit.name]
    assert len(nodes) == 1, f"{edit.file}: {edit.name} is defined {len(nodes)} times"
    first = min(n.lineno for n in (nodes[0], *nodes[0].decorator_list))
    lines = text.splitlines(keepends=True)
    lines[first - 1 : nodes[0].end_lineno] = [edit.source]
    return "".join(lines)
