"""Calls functions in processes where torch is loaded; in the grader's own it is not."""

import importlib
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

from grading.sandbox.forks import FORKS, fork


def in_process(module: str, function: str, *arguments: Any) -> Any:
    """The result of a module's function, called in another process.

    Raises RuntimeError if it raises anything, or if its process dies.
    """
    ours, theirs = FORKS.Pipe(duplex=False)
    process = fork(answer, theirs, module, function, *arguments)
    theirs.close()
    try:
        value, error = ours.recv()
    except EOFError:
        process.join()
        value, error = None, f"its process died (exit code {process.exitcode})"
    process.join()
    if error:
        raise RuntimeError(f"{module}.{function}: {error}")
    return value


def answer(pipe: Connection, module: str, function: str, *arguments: Any) -> None:
    """Send what the function returns, or the error that it raises."""
    try:
        pipe.send((getattr(importlib.import_module(module), function)(*arguments), ""))
    except Exception as error:
        with suppress(OSError):
            pipe.send((None, f"{type(error).__name__}: {error}"))
