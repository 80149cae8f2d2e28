"""The leak check: that nothing of the solution stands anywhere in what is handed out.

Code is compared by statement, so that neither its layout nor its comments can hide it. In prose,
comments and strings a short statement counts as a line or as `code` of its own, a longer one also
within a line.
"""

import ast
import os
import re

from staff.handout.regions import body_of, comments, find_regions

TELLING = 12  # characters, without spaces: from here on a statement is looked for
LONG = 25  # from here on within other text, too
COMPUTING = (ast.Call, ast.BinOp, ast.AugAssign)
IMAGES = (".png",)


def solution_statements(source, path):
    """The statements of a source's regions as `bare` text -> (path, line of the marker)."""
    starts = {region.start + 1: region for region in find_regions(source, path)}
    found = {}
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.stmt):
            continue
        first = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", ()))])
        if first in starts:
            region = starts.pop(first)  # of two that start in one line the walk meets the outer
            for statement in body_of(node):
                for text in statements(statement):
                    if len(text) >= TELLING:
                        found.setdefault(text, (path, region.start))
    return found


def statements(tree):
    """Every simple statement within a tree that computes something, as `bare` text."""
    for node in ast.walk(tree):
        computes = any(isinstance(each, COMPUTING) for each in ast.walk(node))
        if isinstance(node, ast.stmt) and not hasattr(node, "body") and computes:
            yield bare(ast.unparse(node))


def bare(text):
    """Text less what may differ between two copies of one statement: spaces, quotes, commas."""
    return re.sub(r",(?=[)\]}])", "", re.sub(r"\s+", "", text).replace('"', "'"))


def find_leaks(files, solution):
    """What of `solution` (see solution_statements) is in `files`, path -> bytes: sentences."""
    found = (leaks_in(path, data, solution) for path, data in sorted(files.items()))
    return [leak for leaks in found for leak in leaks]


def leaks_in(path, data, solution):
    """The leaks of one file."""
    if path.endswith(IMAGES):
        return
    try:
        text = data.decode()
    except UnicodeDecodeError:
        yield f"{path}: is not text, so that nobody can tell what is in it; leave it out"
        return
    pieces = list(code_pieces(text)) if path.endswith(".py") else []
    if not pieces:
        pieces = [*prose_pieces(text, 1), (1, bare(text), True)]  # at last, over several lines
    for statement, (file, start) in solution.items():
        for line, piece, within in pieces:
            if piece == statement or (within and len(statement) >= LONG and statement in piece):
                yield f"{path}:{line}: has `{statement}` of the solution in {file}:{start}"
                break


def code_pieces(text):
    """(line, bare text, whether to look within it) of a Python source; nothing if it is none."""
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


def prose_pieces(text, first):
    """The lines of a text, and what stands between `backticks` in them."""
    for number, line in enumerate(text.splitlines(), first):
        yield number, bare(line.split("  #")[0].lstrip(" \t#>|*-+$.0123456789")), True
        for span in re.findall(r"`([^`]+)`", line):
            yield number, bare(span), True


def dangling_references(files):
    """What in these files, path -> bytes, leads to something that is not among them: sentences."""
    found, rooms = [], {path.split("/")[0] for path in files if "/" in path} | {"grading"}
    for path, data in files.items():
        if path.endswith(".md"):
            for link in re.findall(r"\]\(([^)#:]+)\)", data.decode()):
                if os.path.normpath(os.path.join(os.path.dirname(path), link)) not in files:
                    found.append(f"{path}: its link to {link} leads nowhere")
        for node in ast.parse(data).body if path.endswith(".py") else []:
            for choices in imported(node):
                room = choices[0].split("/")[0].removesuffix(".py")
                if room in rooms and not any(choice in files for choice in choices):
                    found.append(f"{path}:{node.lineno}: imports {choices[0]}, which stays out")
    return found


def imported(node):
    """For each module that a statement imports the files that it may be."""
    if isinstance(node, ast.Import):
        names = [alias.name.replace(".", "/") for alias in node.names]
        return [[f"{name}.py", f"{name}/__init__.py"] for name in names]
    if isinstance(node, ast.ImportFrom) and node.module:
        module = node.module.replace(".", "/")
        homes = [f"{module}.py", f"{module}/__init__.py"]
        return [[f"{module}/{alias.name}.py", *homes] for alias in node.names]
    return []
