"""Scripts as lines with TODOs, and the lines that two of them have in common."""

import ast
import difflib
from dataclasses import dataclass
from pathlib import Path

from grading.hand_in.todos import Todo, find_todos

SHORTEST_ANCHOR = 6  # characters: shorter lines, such as `)`, may be anywhere


class NotCarriedError(Exception):
    """Why something was not carried, and what to do."""


@dataclass(frozen=True)
class Script:
    """A script's lines and TODOs."""

    path: str
    lines: list[str]
    todos: list[Todo]


@dataclass(frozen=True)
class Block:
    """TODOs of a script that follow each other and are carried from one `source`.

    They stand on its lines `start` to `end`, counted from 0, the last one excluded.
    """

    start: int
    end: int
    indent: int
    source: str
    hint: str


def read(folder: Path, path: str) -> Script:
    """One of the scripts of a student's folder."""
    try:
        return parsed(path, (folder / path).read_text(encoding="utf-8"))
    except OSError as error:
        raise NotCarriedError(f"{path}: cannot be read: {error.strerror}") from None
    except SyntaxError as error:
        raise NotCarriedError(f"{path}:{error.lineno}: not valid Python: {error.msg}") from None
    except ValueError as error:
        raise NotCarriedError(f"{path}: not valid Python: {error}") from None


def parsed(path: str, text: str) -> Script:
    """A script of that text; SyntaxError or ValueError where it is not Python."""
    return Script(path, text.splitlines(keepends=True), find_todos(ast.parse(text)))


def start_of(todo: Todo, lines: list[str]) -> int:
    """The line, from 0, where a TODO starts: that of the comment above it, if there is one."""
    above = lines[todo.line - 2].strip() if todo.line > 1 else ""
    return todo.line - 2 if above.startswith(("# CARRIED(", "# TODO(")) else todo.line - 1


def blocks_of(script: Script, source: str) -> list[Block]:
    """The TODOs that are carried from `source`, those that follow each other as one."""
    blocks: list[Block] = []
    for todo in (todo for todo in script.todos if todo.source == source):
        start = start_of(todo, script.lines)
        if blocks and not "".join(script.lines[blocks[-1].end : start]).strip():
            last = blocks.pop()
            hint = f"{last.hint}; {todo.hint}"
            blocks.append(Block(last.start, todo.end, last.indent, source, hint))
        else:
            blocks.append(Block(start, todo.end, todo.indent, source, todo.hint))
    return blocks


def common_lines(target: Script, source: Script) -> list[tuple[int, int]]:
    """(line of the target, line of the source), from 0, of the lines that both have, in order."""
    ours = [(number, key) for number, key in enumerate(keys(target)) if key]
    theirs = [(number, key) for number, key in enumerate(keys(source)) if key]
    matcher = difflib.SequenceMatcher(
        None, [key for _, key in ours], [key for _, key in theirs], autojunk=False
    )
    return [
        (ours[a + n][0], theirs[b + n][0])
        for a, b, size in matcher.get_matching_blocks()
        for n in range(size)
    ]


def keys(script: Script) -> list[str | None]:
    """Each line without its indentation; None for short lines and those of TODOs."""
    found = [line.strip() for line in script.lines]
    for todo in script.todos:
        for number in range(start_of(todo, script.lines), todo.end):
            found[number] = ""
    return [key if len(key) >= SHORTEST_ANCHOR else None for key in found]
