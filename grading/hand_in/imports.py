"""Imports that a piece of a script needs in another script, too."""

import ast
import textwrap

TopLevelImport = ast.Import | ast.ImportFrom


def add_imports(target: str, piece: str, source: str) -> str:
    """The script `target` with those imports of `source` that `piece`, a part of it now, uses.

    Raises SyntaxError where one of them is not Python.
    """
    used = {
        node.id
        for node in ast.walk(ast.parse(textwrap.dedent(piece)))
        if isinstance(node, ast.Name)
    }
    tree = ast.parse(target)
    wanted = used - bound_names(tree)
    added = [
        statement
        for node in imports_of(ast.parse(source))
        for name, statement in singly(node)
        if name in wanted
    ]
    if not added:
        return target
    lines = target.splitlines(keepends=True)
    last = max((node.end_lineno or 0 for node in imports_of(tree)), default=0)
    return "".join([*lines[:last], *(f"{each}\n" for each in added), *lines[last:]])


def imports_of(tree: ast.Module) -> list[TopLevelImport]:
    """The imports at a script's top level."""
    return [node for node in tree.body if isinstance(node, TopLevelImport)]


def bound_names(tree: ast.Module) -> set[str]:
    """The names that a script's top level has from imports, functions and classes."""
    names = {name for node in imports_of(tree) for name, _ in singly(node)}
    definitions = (ast.FunctionDef, ast.ClassDef)
    return names | {node.name for node in tree.body if isinstance(node, definitions)}


def singly(node: TopLevelImport) -> list[tuple[str, str]]:
    """(name that it binds, an import of that alone) for each name of an import."""
    found = []
    for alias in node.names:
        single = ast.Import([alias])
        if isinstance(node, ast.ImportFrom):
            single = ast.ImportFrom(node.module, [alias], node.level)
        found.append((alias.asname or alias.name.partition(".")[0], ast.unparse(single)))
    return found
