"""A room with several commands: `python -m ROOM COMMAND ...`."""

import argparse
import importlib
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from common.errors import UserError


class Parser(argparse.ArgumentParser):
    """argparse, except that bad usage raises UserError with the usage given to it."""

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message}: use {self.usage}")


def run_command(
    room: str,
    commands: Mapping[str, tuple[str, str]],
    moved: Mapping[str, str],
    argv: Sequence[str],
) -> int:
    """Run one of a room's commands; returns the exit code: 2 for a user error, 130 for Ctrl-C.

    `commands` is name -> (module with a main(argv), or module:function, what it does); `moved` is
    name -> the command line that replaces it.
    """
    usage = f"usage: python -m {room} COMMAND ... (COMMAND --help shows its options)\n"
    usage += "".join(f"  {name:<12}{does}\n" for name, (_, does) in commands.items())
    if argv[:1] in (["-h"], ["--help"]):
        print(usage, end="")
        return 0
    if not argv or argv[0] not in commands:
        problem = f"unknown command {argv[0]!r}" if argv else "give a command"
        if argv and argv[0] in moved:
            problem = f"{argv[0]} has moved: use `{moved[argv[0]]}`"
        print(f"{room}: {problem}\n{usage}", end="", file=sys.stderr)
        return 2
    name, *rest = argv
    try:
        module, _, function = commands[name][0].partition(":")
        return getattr(importlib.import_module(module), function or "main")(rest)
    except UserError as error:
        print(f"{room} {name}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"{room} {name}: interrupted; what is finished is kept", file=sys.stderr)
        return 130


def program() -> str:
    """The command as it was called, for --help: python -m ROOM COMMAND, or a script's name."""
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    if spec is None:
        script = sys.argv[0]
        return f"python {script}" if script.endswith(".py") else Path(script).name
    if spec.name.endswith(".__main__"):
        return " ".join(["python -m", spec.name.removesuffix(".__main__"), *sys.argv[1:2]])
    return f"python -m {spec.name}"


def exit_moved(old: str, new: str) -> NoReturn:
    """Say that a command has moved, and exit as after any user error."""
    print(f"{old} has moved: use `{new}`", file=sys.stderr)
    sys.exit(2)
