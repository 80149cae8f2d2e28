"""Copy what you wrote in an earlier task's script to the later tasks' scripts.

    python -m grading carry [FOLDER]

Wherever a later script raises "TODO(task1): ...; write it in task1/run_glue.py ...", the lines that
you wrote there take its place: those between the two nearest lines that both scripts have.
"""

import argparse
import ast
import difflib
from dataclasses import dataclass
from pathlib import Path

from common.errors import UserError
from common.files import write_whole
from common.tasks import TABLE
from grading.hand_in.imports import add_imports
from grading.hand_in.todos import Todo, find_todos

SHORTEST_ANCHOR = 6  # characters: shorter lines, such as `)`, may be anywhere
SIMILAR = 0.7  # a line this like another one is that one, changed (difflib's ratio)
BY_HAND = "copy it by hand"


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


def main(argv: list[str] | None = None) -> int:
    """Carry; returns 0, unless nothing could be carried (UserError)."""
    parser = argparse.ArgumentParser(
        prog="python -m grading carry", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("folder", type=Path, nargs="?", default=Path(), help="(default: this one)")
    folder = parser.parse_args(argv).folder
    if not any((folder / task.script).is_file() for task in TABLE):
        raise UserError(f"{folder} holds no {TABLE[0].script}; give the folder of your work")
    carried, missed = carry(folder)
    for sentence in carried:
        print(sentence)
    if missed and not carried:
        raise UserError("\n".join(missed))
    for sentence in missed:
        print(f"not carried: {sentence}")
    if not carried:
        print("nothing to carry: no script waits for another")
    return 0


def carry(folder: Path) -> tuple[list[str], list[str]]:
    """Carry all that can be; returns (what was carried, what was not and why), as sentences."""
    carried, missed = [], []
    for task in TABLE:
        for path in sorted((folder / task.name).glob("*.py")):
            done, left = carry_into(folder, path.relative_to(folder).as_posix())
            carried += done
            missed += left
    return carried, list(dict.fromkeys(missed))


def carry_into(folder: Path, path: str) -> tuple[list[str], list[str]]:
    """Carry all that can be into one script; returns what `carry` does."""
    carried, missed, sources = [], [], {}
    try:
        target = read(folder, path)
        for name in by_task({todo.source for todo in target.todos} - {""}):
            sources[name] = read(folder, name)
    except NotCarriedError as error:
        return [], [str(error)]
    for name, source in sources.items():
        for block in reversed(blocks_of(target, name)):
            try:
                first, text = written(target, block, source)
                target = replaced(target, block, text, source)
            except NotCarriedError as error:
                missed.append(str(error))
            else:
                carried.append(f"{path}: {block.hint} (from {name}:{first})")
    if carried:
        write_whole(folder / path, "".join(target.lines))
    return carried[::-1], missed[::-1]


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


def by_task(sources: set[str]) -> list[str]:
    """Scripts in the order of their tasks: the parts of earlier ones are context for later ones."""
    names = [task.name for task in TABLE]
    return sorted(
        (name for name in sources if name.split("/")[0] in names),
        key=lambda name: (names.index(name.split("/")[0]), name),
    )


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


def written(target: Script, block: Block, source: Script) -> tuple[int, str]:
    """(its first line, counted from 1, text) of what belongs in a block, indented for it."""
    pairs = common_lines(target, source)
    before = max((pair for pair in pairs if pair[0] < block.start), default=None)
    after = min((pair for pair in pairs if pair[0] >= block.end), default=None)
    if before is None or after is None:
        side = "above" if before is None else "below"
        raise NotCarriedError(
            f"{target.path}: {block.hint}: {source.path} has none of the lines {side} it; {BY_HAND}"
        )
    first, last = before[1] + 1, after[1]
    while first < last and not source.lines[first].strip():
        first += 1
    while first < last and not source.lines[last - 1].strip():
        last -= 1
    for todo in source.todos:
        if first < todo.line <= last:
            advice = "" if todo.source else "; write it first"
            raise NotCarriedError(f"{source.path}:{todo.line}: {todo.text}{advice}")
    if first == last:
        raise NotCarriedError(
            f"{source.path}:{first}: nothing stands there for: {block.hint}; write it first"
        )
    text = source.lines[first:last]
    check_context(target, keys(target)[before[0] + 1 : after[0]], source, text)
    return first + 1, indented(text, block.indent, f"{source.path}:{first + 1}")


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


def check_context(
    target: Script, skipped: list[str | None], source: Script, text: list[str]
) -> None:
    """Raise NotCarriedError where the source has one of the lines next to the block changed."""
    code = [line.strip() for line in text if not line.strip().startswith("#")]
    for line in skipped:
        close = difflib.get_close_matches(line, code, 1, SIMILAR) if line else []
        if close:
            raise NotCarriedError(
                f"{target.path}: `{line}` is not in {source.path}, which has `{close[0]}` there; "
                f"{BY_HAND}"
            )


def indented(lines: list[str], indent: int, place: str) -> str:
    """Lines moved so that the first is as far indented as `indent` says."""
    margin = lines[0][: len(lines[0]) - len(lines[0].lstrip())]
    if any(line.strip() and not line.startswith(margin) for line in lines):
        raise NotCarriedError(f"{place}: is further indented than what follows; {BY_HAND}")
    moved = [" " * indent + line[len(margin) :] if line.strip() else "\n" for line in lines]
    return "".join(moved)


def replaced(target: Script, block: Block, text: str, source: Script) -> Script:
    """The target with a text in a block's place, and with the imports that it uses."""
    lines = [*target.lines[: block.start], text, *target.lines[block.end :]]
    try:
        whole = add_imports("".join(lines), text, "".join(source.lines))
        return parsed(target.path, whole)
    except SyntaxError:
        raise NotCarriedError(
            f"{target.path}: {block.hint}: does not fit there; {BY_HAND}"
        ) from None
