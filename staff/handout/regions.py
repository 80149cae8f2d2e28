"""The marked regions of a source: where the solution stands, and the TODO that takes its place.

A comment `# SOLUTION(task2a): hint`, on the line above a statement and as far indented, marks that
statement; above a function, what the function does below its docstring. There is no end to be
forgotten: the region ends where the statement does.
"""

import ast
import io
import re
import tokenize
from dataclasses import dataclass

from common.errors import UserError

TASKS = ("task1", "task2a", "task2b", "task3", "task4")
LOOKS_LIKE = re.compile(r"#\W*SOLUTION\b", re.IGNORECASE)
MARKER = re.compile(rf"# SOLUTION\(({'|'.join(TASKS)})\): (\S[^\"]*)")
WIDTH = 100  # of a line, as ruff has it


@dataclass(frozen=True)
class Region:
    """Lines `start` to `end` of a source, from 1, both included; `stub` stands for them."""

    path: str
    task: str
    hint: str
    start: int
    end: int
    text: str
    stub: str


def find_regions(source, path):
    """The regions of a Python source, from its top to its end.

    Raises UserError, with file and line, for a marker that is misspelt, that stands above no
    statement, or within another's region.
    """
    lines = source.splitlines(keepends=True)
    statements = {}
    for node in ast.walk(ast.parse(source, path)):  # outer ones come before those within them
        if isinstance(node, ast.stmt):
            first = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", ()))])
            statements.setdefault(first, node)
    found = []
    for line, column, comment in comments(source):
        if not LOOKS_LIKE.match(comment):
            continue
        marker, node = MARKER.fullmatch(comment), statements.get(line + 1)
        if not marker:
            raise UserError(
                f"{path}:{line}: {comment}: write `# SOLUTION(task): hint`, with one of "
                f'{", ".join(TASKS)} and a hint without "'
            )
        if not node or lines[line - 1][:column].strip() or node.col_offset != column:
            raise UserError(
                f"{path}:{line}: {comment}: marks no statement; put it on the line above one, "
                "as far indented"
            )
        if found and line <= found[-1].end:
            raise UserError(
                f"{path}:{line}: {comment}: is within the region of line {found[-1].start}; "
                "take one of the two markers out"
            )
        text = "".join(lines[line - 1 : node.end_lineno])
        stub = "".join(head_of(node, lines)) + todo(node, marker, f"{path}:{line}")
        found.append(Region(path, *marker.groups(), line, node.end_lineno, text, stub))
    return found


def comments(source):
    """(line, column, text) of every comment."""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield *token.start, token.string


def body_of(node):
    """The statements that a marker above `node` marks."""
    if not isinstance(node, ast.FunctionDef):
        return [node]
    return node.body[1:] if ast.get_docstring(node) is not None else node.body


def head_of(node, lines):
    """The lines of a marked statement that stay: of a function all but what it does."""
    if not isinstance(node, ast.FunctionDef):
        return []
    documented = ast.get_docstring(node) is not None
    first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
    last = node.body[0].end_lineno if documented else node.body[0].lineno - 1
    return lines[first - 1 : last]


def todo(node, marker, place):
    """The comment and the exception that take a region's place, as ruff would format them."""
    indent = " " * (node.col_offset + 4 * isinstance(node, ast.FunctionDef))
    text = "TODO({}): {}".format(*marker.groups())
    whole = f'{indent}raise NotImplementedError("{text}")'
    if len(whole) > WIDTH:
        inner = f'{indent}    "{text}"'
        if len(inner) > WIDTH:
            raise UserError(f"{place}: the hint is too long by {len(inner) - WIDTH} characters")
        whole = f"{indent}raise NotImplementedError(\n{inner}\n{indent})"
    return f"{indent}# {text}\n{whole}\n"


def cut(source, regions):
    """The source with a TODO in place of each region."""
    lines = source.splitlines(keepends=True)
    for region in reversed(regions):
        lines[region.start - 1 : region.end] = [region.stub]
    return "".join(lines)


def paste(source, regions, tasks=TASKS):
    """The source of a handout with the regions of these tasks in place of their TODOs.

    Raises UserError where a TODO is no longer as it was handed out.
    """
    done, rest = "", source
    for region in regions:
        before, stub, after = rest.partition(region.stub)
        if region.task not in tasks:
            done, rest = (done + before + stub, after) if stub else (done, rest)
        elif stub:
            done, rest = done + before + region.text, after
        else:
            raise UserError(
                f"{region.path}: TODO({region.task}): {region.hint}: is not there as it was handed "
                "out; fill in a fresh handout"
            )
    return done + rest
