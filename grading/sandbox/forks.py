"""The server that workers are forked from: torch is loaded in it, and no secret of the grader's."""

import multiprocessing
import os
import threading
from collections.abc import Callable
from multiprocessing import forkserver
from typing import Any

FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["common.preload"])
# The beginnings of the names of variables that it gets: its children could read all of them.
KEPT = ("PATH", "HOME", "LANG", "LC_", "TMPDIR", "TZ", "PYTHON", "LD_", "DYLD_", "VIRTUAL_ENV")
KEPT += ("OMP_", "MKL_", "TORCH", "CUDA", "HF_", "USER", "LOGNAME")
LOCK = threading.Lock()


def fork(target: Callable, *arguments: Any):
    """Start a process of the server's that calls `target`; returns the process."""
    with LOCK:
        start_server()
    process = FORKS.Process(target=target, args=arguments, daemon=True)
    process.start()
    return process


def start_server() -> None:
    """Start the server, unless it runs, with few of the variables of this process's environment."""
    before = dict(os.environ)
    try:
        for name in before:
            if not name.startswith(KEPT):
                del os.environ[name]
        forkserver.ensure_running()
    finally:
        os.environ.update(before)
