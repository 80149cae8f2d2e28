"""The marked regions of a source: where the solution stands, and the TODO that takes its place.

A comment `# SOLUTION(task2a): hint`, on the line above a statement and as far indented, marks that
statement; above a function, what the function does below its docstring. The region ends where the
statement does. A region that an earlier task's script has already, with the same task and hint, is
*carried*: students write it once, and `python -m grading carry` copies it (see mark_carried).
"""

import ast
import io
import re
import tokenize
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from common.errors import UserError
from common.tasks import FOLDERS, SCRIPTS

LOOKS_LIKE = re.compile(r"#\W*SOLUTION\b", re.IGNORECASE)
MARKER = re.compile(rf"# SOLUTION\(({'|'.join(SCRIPTS)})\): (\S[^\"]*)")
LINE_WIDTH = 100  # as ruff has it


@dataclass(frozen=True)
class Region:
    """Lines `start` to `end` of a source, counted from 1, both included.

    `head` are those of its lines that stay, `source` the script that a carried one is carried from.
    """

    path: str
    task: str
    hint: str
    start: int
    end: int
    text: str
    head: str
    indent: str
    source: str = ""

    @property
    def stub(self) -> str:
        """What stands for it in the handout, formatted as by ruff; UserError for a long hint."""
        name = "CARRIED" if self.source else "TODO"
        comment = f"{self.indent}# {name}({self.task}): {self.hint}\n"
        return self.head + comment + "".join(f"{each}\n" for each in self.exception())

    def exception(self) -> list[str]:
        """The lines that raise NotImplementedError, which says what to write, and where."""
        hint, where = f"TODO({self.task}): {self.hint}", ""
        if self.source:
            where = f"; write it in {self.source}, then run: python -m grading carry"
        whole = f'{self.indent}raise NotImplementedError("{hint}{where}")'
        if len(whole) <= LINE_WIDTH:
            return [whole]
        inner = [f'{self.indent}    "{hint}{where}"']
        if len(inner[0]) > LINE_WIDTH and where:
            inner = [f'{self.indent}    "{hint}"', f'{self.indent}    "{where}"']
        excess = max(map(len, inner)) - LINE_WIDTH
        if excess > 0:
            raise UserError(
                f"{self.path}:{self.start}: the hint is too long by {excess} characters"
            )
        return [f"{self.indent}raise NotImplementedError(", *inner, f"{self.indent})"]


def find_regions(source: str, path: str) -> list[Region]:
    """The regions of a Python source, from its top to its end.

    Raises UserError, with file and line, for a marker that is misspelt, that stands above no
    statement, or within another's region.
    """
    lines = source.splitlines(keepends=True)
    statements = statements_by_line(source, path)
    found: list[Region] = []
    for line, column, comment in comments(source):
        if not LOOKS_LIKE.match(comment):
            continue
        place = f"{path}:{line}: {comment}"
        marker, node = MARKER.fullmatch(comment), statements.get(line + 1)
        if not marker:
            raise UserError(
                f"{place}: write `# SOLUTION(task): hint`, with one of {', '.join(SCRIPTS)} and a "
                'hint without "'
            )
        if not node or lines[line - 1][:column].strip() or node.col_offset != column:
            raise UserError(
                f"{place}: marks no statement; put it on the line above one, as far indented"
            )
        if found and line <= found[-1].end:
            raise UserError(
                f"{place}: is within the region of line {found[-1].start}; remove one of the two "
                "markers"
            )
        end = node.end_lineno or node.lineno
        text = "".join(lines[line - 1 : end])
        indent = " " * (column + 4 * isinstance(node, ast.FunctionDef))
        head = "".join(head_of(node, lines))
        region = Region(path, marker[1], marker[2], line, end, text, head, indent)
        region.exception()  # raises where the hint is too long
        found.append(region)
    return found


def mark_carried(found: dict[str, list[Region]]) -> dict[str, list[Region]]:
    """The regions of each path, with `source` set where an earlier task's script has the same."""
    first: dict[tuple[str, str], str] = {}
    marked = dict(found)
    for path in sorted((path for path in found if folder_of(path) in FOLDERS), key=place_in_course):
        sources = [first.setdefault((one.task, one.hint), path) for one in found[path]]
        marked[path] = [
            one if source == path else replace(one, source=source)
            for one, source in zip(found[path], sources, strict=True)
        ]
    return marked


def folder_of(path: str) -> str:
    """The first folder of a path."""
    return path.partition("/")[0]


def place_in_course(path: str) -> tuple[int, int, str]:
    """Sorts the files of the tasks' folders in the order of the table, and others after them."""
    scripts = [task.script for task in SCRIPTS.values()]
    place = scripts.index(path) if path in scripts else len(scripts)
    return FOLDERS.index(folder_of(path)), place, path


def statements_by_line(source: str, path: str) -> dict[int, ast.stmt]:
    """First line -> the outermost statement that starts there."""
    statements: dict[int, ast.stmt] = {}
    for node in ast.walk(ast.parse(source, path)):  # outer ones precede those within them
        if isinstance(node, ast.stmt):
            statements.setdefault(first_line(node), node)
    return statements


def first_line(node: ast.stmt) -> int:
    """The line where a statement starts, with its decorators."""
    return min([node.lineno, *(each.lineno for each in getattr(node, "decorator_list", ()))])


def comments(source: str) -> Iterator[tuple[int, int, str]]:
    """(line, column, text) of every comment."""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield *token.start, token.string


def body_of(node: ast.stmt) -> list[ast.stmt]:
    """The statements that a marker above `node` marks."""
    if not isinstance(node, ast.FunctionDef):
        return [node]
    return node.body[1:] if ast.get_docstring(node) is not None else node.body


def head_of(node: ast.stmt, lines: list[str]) -> list[str]:
    """The lines of a marked statement that stay: of a function all but what it does."""
    if not isinstance(node, ast.FunctionDef):
        return []
    documented = ast.get_docstring(node) is not None
    last = node.body[0].end_lineno if documented else node.body[0].lineno - 1
    return lines[first_line(node) - 1 : last]


def cut(source: str, regions: list[Region]) -> str:
    """The source with a stub in place of each region."""
    lines = source.splitlines(keepends=True)
    for region in reversed(regions):
        lines[region.start - 1 : region.end] = [region.stub]
    return "".join(lines)


def paste(source: str, regions: list[Region], tasks: Iterable[str] = tuple(SCRIPTS)) -> str:
    """The source of a handout with the regions of these tasks in place of their TODOs.

    Carried regions stay as they are. Raises UserError where a TODO was changed.
    """
    done, rest = "", source
    for region in regions:
        before, stub, after = rest.partition(region.stub)
        if region.task not in tasks or region.source:
            done, rest = (done + before + stub, after) if stub else (done, rest)
        elif stub:
            done, rest = done + before + region.text, after
        else:
            raise UserError(
                f"{region.path}: TODO({region.task}): {region.hint}: is not there as it was handed "
                "out; fill in a fresh handout"
            )
    return done + rest
