"""Finds the parts of a script that are still to be written: what raises NotImplementedError."""

import ast
import re
from dataclasses import dataclass

CARRIED = re.compile(r"; write it in (\S+), then run: python -m grading carry$")


@dataclass(frozen=True)
class Todo:
    """A `raise NotImplementedError("TODO(task): ...")` on the lines `line` to `end`, from 1.

    `source` is the script that it is carried from, if it is to be written in an earlier task's.
    """

    line: int
    end: int
    indent: int
    text: str
    source: str

    @property
    def hint(self) -> str:
        """What is to be written."""
        return CARRIED.sub("", self.text).partition(": ")[2]


def find_todos(tree: ast.AST) -> list[Todo]:
    """The TODOs of a script, from its top to its end."""
    found = []
    for node in ast.walk(tree):
        text = message_of(node)
        if isinstance(node, ast.Raise) and text.startswith("TODO("):
            carried = CARRIED.search(text)
            source = carried[1] if carried else ""
            found.append(
                Todo(node.lineno, node.end_lineno or node.lineno, node.col_offset, text, source)
            )
    return sorted(found, key=lambda todo: todo.line)


def message_of(node: ast.AST) -> str:
    """The text of a `raise NotImplementedError(text)`; "" for anything else."""
    call = getattr(node, "exc", None)
    if not isinstance(call, ast.Call) or ast.unparse(call.func) != "NotImplementedError":
        return ""
    constant = call.args[0] if call.args else None
    return str(constant.value) if isinstance(constant, ast.Constant) else ""
