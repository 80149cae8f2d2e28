"""Reads a submission's scripts: what is not valid Python, and what is still to be written."""

import ast
import warnings
from pathlib import Path

from common.tasks import SCRIPTS
from grading.hand_in.files import walk
from grading.hand_in.safe_text import line
from grading.hand_in.todos import find_todos

CARRIED = "parts of later scripts: `python -m grading carry` copies them once they are written"
OPTIONAL = "parts of further tasks are not written: they are not part of the assignment"


def read_scripts(root: Path) -> bool:
    """Compile every script of a submission and list its TODOs; returns whether all is done."""
    problems, carried, optional = [], 0, 0
    for path in walk(root)[0]:
        if path.suffix == ".py":
            found, more = problems_of(root / path)
            further = [problem for problem in found if is_further(path, problem)]
            problems += [f"{line(path)}{each}" for each in found if each not in further]
            of_further_task = is_further(path)
            optional += len(further) + more * of_further_task
            carried += more * (not of_further_task)
    if carried:
        problems.append(f"{carried} {CARRIED}")
    for problem in problems:
        print(f"  {problem}")
    if optional:
        print(f"  ({optional} {OPTIONAL})")
    count = f"{len(problems)} problem" + "s" * (len(problems) != 1)
    print(f"rehearsal: {count if problems else 'no TODO is left, and every script can be read'}")
    return not problems


def is_further(path: Path, problem: str = "") -> bool:
    """Whether a script, or the TODO in a problem, belongs to a further task."""
    further = [task for task in SCRIPTS.values() if task.further]
    inside = any(path.parts[0] == task.name or str(path) == task.script for task in further)
    return inside or any(f"TODO({task.name})" in problem for task in further)


def problems_of(script: Path) -> tuple[list[str], int]:
    """(what is wrong with a script, with its line: that it is not Python, or its TODOs; carried).

    The second is how many of its parts are to be written elsewhere and carried here.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(script.read_bytes())
            compile(tree, "script", "exec", dont_inherit=True)
    except SyntaxError as error:
        return [f":{error.lineno}: this is not valid Python: {line(error.msg)}"], 0
    except (ValueError, RecursionError, MemoryError) as error:
        return [f": this is not valid Python: {line(error)}"], 0
    todos = find_todos(tree)
    own = [f":{todo.line}: {line(todo.text)}" for todo in todos if not todo.source]
    return own, len(todos) - len(own)
