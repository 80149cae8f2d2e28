"""Copy what you wrote in an earlier task's script to the later tasks' scripts.

    python -m grading carry [FOLDER]

Wherever a later script raises "TODO(task1): ...; write it in task1/run_glue.py ...", the lines that
you wrote there take its place: those between the two nearest lines that both scripts have.
"""

import argparse
import difflib
from pathlib import Path

from common.errors import UserError
from common.files import write_whole
from common.tasks import FOLDERS, TABLE
from grading.hand_in.imports import add_imports
from grading.hand_in.scripts import (
    Block,
    NotCarriedError,
    Script,
    blocks_of,
    common_lines,
    keys,
    parsed,
    read,
)

SIMILAR = 0.7  # a line this like another one is that one, changed (difflib's ratio)
BY_HAND = "copy it by hand"


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
    for name in FOLDERS:
        for path in sorted((folder / name).glob("*.py")):
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


def by_task(sources: set[str]) -> list[str]:
    """Scripts in the order of their tasks: the parts of earlier ones are context for later ones."""
    return sorted(
        (name for name in sources if name.split("/")[0] in FOLDERS),
        key=lambda name: (FOLDERS.index(name.split("/")[0]), name),
    )


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
    while first < last and is_before(source.lines[last - 1], source.lines[first]):
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
    place = f"{target.path}: {block.hint}: {source.path}:{first + 1}"
    return first + 1, indented(text, block.indent, place)


def is_before(line: str, first: str) -> bool:
    """Whether a line belongs to what follows: blank, or a comment that is less indented."""
    margin = len(first) - len(first.lstrip())
    bare = line.lstrip()
    return not bare or (bare.startswith("#") and len(line) - len(bare) < margin)


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
        raise NotCarriedError(f"{place} is further indented than what follows; {BY_HAND}")
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
