"""Answers --help of a script that trains before PyTorch is loaded, which takes seconds."""

import ast
import sys
from importlib import import_module
from pathlib import Path

from common.cli import parse_args
from common.flags import Flag


def answer():
    """Print the help of the script that is starting, and exit, if that is what was asked for."""
    script = Path(sys.argv[0])
    if script.name == "__main__.py":  # python -m cluster hello
        script = script.with_name(f"{sys.argv[1]}.py")
    if script.suffix != ".py" or not script.is_file():
        return
    text = script.read_text(encoding="utf-8")
    if "run(main, __file__" not in text and script.name != "hello.py":
        return
    tree = ast.parse(text)
    try:
        flags = [flag for node in tree.body for flag in flags_of(node)]
    except (NameError, SyntaxError):
        return  # its flags are not written out: it answers itself
    parse_args(str(script), flags, ["--help"], about=ast.get_docstring(tree))


def flags_of(node):
    """The flags that a statement lists: `FLAGS = [Flag(...), ...]`, or `+=`, or imports."""
    if isinstance(node, ast.ImportFrom) and "FLAGS" in [alias.name for alias in node.names]:
        return import_module(str(node.module)).FLAGS
    value = getattr(node, "value", None)
    assigned = isinstance(node, (ast.Assign, ast.AugAssign))
    if not (assigned and isinstance(value, ast.List) and value.elts):
        return []
    if not all(isinstance(e, ast.Call) and ast.unparse(e.func) == "Flag" for e in value.elts):
        return []
    return eval(compile(ast.Expression(value), "flags", "eval"), {"Flag": Flag})
