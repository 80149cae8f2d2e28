"""The leak check: nothing of the solution may stand anywhere in what is handed out.

Code is compared by statement, so that neither its layout nor its comments can hide it. In prose,
comments and strings a short statement counts as a whole line or as `code`, a longer one also within
a line.
"""

import ast
import os
import re
from collections.abc import Collection, Iterator, Mapping

from staff.handout.regions import body_of, comments, find_regions, statements_by_line

SHORTEST = 12  # characters, without spaces: from here on a statement is looked for
LONG = 25  # from here on within other text, too
Solution = dict[str, tuple[str, int]]  # `bare` statement -> its path and marker's line
COMPUTING = (ast.Call, ast.BinOp, ast.AugAssign)
Piece = tuple[int, str, bool]  # line, bare text, whether to look for statements within it
UNREAD = (".png", ".npz")  # pictures, and numbers that are loaded without pickle


def solution_statements(source: str, path: str) -> Solution:
    """The statements of a source's regions."""
    outermost = statements_by_line(source, path)
    found: Solution = {}
    for region in find_regions(source, path):
        for statement in body_of(outermost[region.start + 1]):
            for text in statements(statement):
                if len(text) >= SHORTEST:
                    found.setdefault(text, (path, region.start))
    return found


def statements(tree: ast.AST) -> Iterator[str]:
    """Every simple statement within a tree that computes something, as `bare` text."""
    for node in ast.walk(tree):
        computes = any(isinstance(each, COMPUTING) for each in ast.walk(node))
        if isinstance(node, ast.stmt) and not hasattr(node, "body") and computes:
            yield bare(ast.unparse(node))


def bare(text: str) -> str:
    """Text without what may differ between two copies of a statement: spaces, quotes, commas."""
    return re.sub(r",(?=[)\]}])", "", re.sub(r"\s+", "", text).replace('"', "'"))


def find_leaks(files: Mapping[str, bytes], solution: Solution) -> list[str]:
    """What of the solution is in `files`, path -> content: sentences."""
    found = (leaks_in(path, data, solution) for path, data in sorted(files.items()))
    return [leak for leaks in found for leak in leaks]


def leaks_in(path: str, data: bytes, solution: Solution) -> Iterator[str]:
    """The leaks of one file."""
    if path.endswith(UNREAD):
        return
    try:
        text = data.decode()
    except UnicodeDecodeError:
        yield f"{path}: is not text, so it cannot be checked; keep it out of the handout"
        return
    pieces = list(code_pieces(text)) if path.endswith(".py") else []
    if not pieces:
        pieces = [*prose_pieces(text, 1), (1, bare(text), True)]  # the last, over several lines
    for statement, (file, start) in solution.items():
        for line, piece, within in pieces:
            if piece == statement or (within and len(statement) >= LONG and statement in piece):
                yield f"{path}:{line}: has `{statement}` of the solution in {file}:{start}"
                break


def code_pieces(text: str) -> Iterator[Piece]:
    """The pieces of a Python source; none if it is not Python."""
    try:
        tree = ast.parse(text)
    except SyntaxError:
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.stmt) and not hasattr(node, "body"):
            yield node.lineno, bare(ast.unparse(node)), False
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, bare(node.value), True
            yield from prose_pieces(node.value, node.lineno)
    for line, _, comment in comments(text):
        yield line, bare(comment.lstrip("#")), True
        yield from prose_pieces(comment, line)


def prose_pieces(text: str, first: int) -> Iterator[Piece]:
    """The lines of a text, and what stands between `backticks` in them."""
    for number, line in enumerate(text.splitlines(), first):
        yield number, bare(line.split("  #")[0].lstrip(" \t#>|*-+$.0123456789")), True
        for span in re.findall(r"`([^`]+)`", line):
            yield number, bare(span), True


def dangling_references(files: Mapping[str, bytes]) -> list[str]:
    """What in these files, path -> content, points to a file that is not among them: sentences."""
    rooms = {path.split("/")[0] for path in files if "/" in path}
    found = []
    for path, data in files.items():
        if path.endswith(".md"):
            found += dangling_links(path, data.decode(), files)
        if path.endswith(".py"):
            found += dangling_imports(path, data, files, rooms)
    return found


def dangling_links(path: str, text: str, files: Collection[str]) -> Iterator[str]:
    """The relative links of a Markdown file that lead nowhere."""
    for link in re.findall(r"\]\(([^)#:]+)\)", text):
        if os.path.normpath(os.path.join(os.path.dirname(path), link)) not in files:
            yield f"{path}: its link to {link} leads nowhere"


def dangling_imports(
    path: str, source: bytes, files: Collection[str], rooms: Collection[str]
) -> Iterator[str]:
    """The imports from these rooms that name no file."""
    for node in ast.parse(source).body:
        for choices in imported(node):
            room = choices[0].split("/")[0].removesuffix(".py")
            if room in (*rooms, "staff") and not any(choice in files for choice in choices):
                yield f"{path}:{node.lineno}: imports {choices[0]}, which stays out"


def imported(node: ast.stmt) -> list[list[str]]:
    """For each module that a statement imports the files that it may be."""
    if isinstance(node, ast.Import):
        names = [alias.name.replace(".", "/") for alias in node.names]
        return [[f"{name}.py", f"{name}/__init__.py"] for name in names]
    if isinstance(node, ast.ImportFrom) and node.module:
        module = node.module.replace(".", "/")
        homes = [f"{module}.py", f"{module}/__init__.py"]
        return [[f"{module}/{alias.name}.py", *homes] for alias in node.names]
    return []
