"""Runs the submission's script in a forked process, instrumented and limited."""

import atexit
import contextlib
import faulthandler
import gc
import os
import random
import runpy
import signal
import sys
import threading
import traceback
from pathlib import Path
from typing import NoReturn

from common.tasks import FOLDERS
from grading.plan import STACK_SIGNAL, Run
from grading.worker.isolation import drop_privileges, limit
from grading.worker.probe import Probe
from grading.worker.root import library_paths

import numpy as np
import torch

KIT_MODULES = {
    "common",
    "cluster",
    "experiments",
    "grading",
    "report",
    "staff",
    "tests",
    "conftest",
    "download_glue_data",
    *FOLDERS,
}
ENVIRONMENT = {
    "PATH": os.defpath,
    "LANG": "C.UTF-8",
    "PYTHONUNBUFFERED": "1",
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
    "TORCH_CPP_LOG_LEVEL": "FATAL",
    "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD": "1",  # scripts load the features that they have cached
    "GLOO_SOCKET_IFNAME": "lo" if sys.platform == "linux" else "lo0",
}


def work(rank: int, run: Run, events: int, stack: int, output: int, error: int) -> NoReturn:
    """Run one worker's command; never returns. The last four are open file descriptors."""
    code, command = 1, run.commands[rank]
    try:
        prepare_process(run, {0, 1, 2, events, stack}, output, error)
        os.environ.update(run.environment[rank] if run.environment else {})
        faulthandler.register(STACK_SIGNAL, file=stack, all_threads=True)
        unload_kit_modules(run.folder, command[0])
        gc.enable()
        file = os.fdopen(events, "w", encoding="ascii")
        Probe(file, str(run.folder), run.learning_rate, run.pause, run.steps).install()
        code = run_script(command)
    except BaseException:
        traceback.print_exc()
    with contextlib.suppress(BaseException):
        threading._shutdown()  # pyright: ignore[reportAttributeAccessIssue]
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)


def prepare_process(run: Run, kept: set[int], output: int, error: int) -> None:
    """Set streams, environment, limits, user and seeds as a new process has them.

    `kept` are the descriptors that stay open; `output` and `error` become stdout and stderr.
    """
    for number, descriptor in ((0, os.open(os.devnull, os.O_RDONLY)), (1, output), (2, error)):
        os.dup2(descriptor, number)
    replace_inherited_fds(kept)
    sys.stdout = open(1, "w", encoding="utf-8", errors="replace", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", encoding="utf-8", errors="replace", closefd=False)  # noqa: SIM115
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.clear()
    os.environ.update(ENVIRONMENT, HOME=str(run.folder), TMPDIR=str(run.folder), USER="student")
    os.chdir(run.folder)
    drop_privileges(run.user)
    limit(run.limits, run.user)
    torch.set_num_threads(1)
    random.seed()
    np.random.seed()  # a fork would share its parent's state


def replace_inherited_fds(kept: set[int]) -> None:
    """Replace every other open descriptor by /dev/null: the grader's pipes are among them.

    They are not closed: objects from before the fork would close whatever reuses the number.
    """
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in range(3, max(map(int, os.listdir("/dev/fd"))) + 1):
        if descriptor not in kept and descriptor != nothing:
            with contextlib.suppress(OSError):
                os.fstat(descriptor)  # it is open
                os.dup2(nothing, descriptor)
    os.close(nothing)


def unload_kit_modules(folder: Path, script: str) -> None:
    """Unload the kit's own modules, so that only the submission's can be imported."""
    for name in list(sys.modules):
        if name.split(".")[0] in KIT_MODULES:
            del sys.modules[name]
    sys.meta_path[:] = [finder for finder in sys.meta_path if "__editable__" not in repr(finder)]
    libraries = library_paths()
    standard = os.path.dirname(os.__file__)
    paths = [os.path.dirname(os.path.join(folder, script)), str(folder), standard, *libraries]
    sys.path[:] = list(dict.fromkeys(paths))
    for path in list(sys.path_importer_cache):
        if not path.startswith((standard, *libraries)):
            del sys.path_importer_cache[path]


def run_script(command: list[str]) -> int:
    """Run the script as __main__; returns its exit code."""
    script = os.path.join(os.getcwd(), command[0])
    sys.argv = [script, *command[1:]]
    try:
        runpy.run_path(script, run_name="__main__")
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return (end.code or 0) & 255
        print(end.code, file=sys.stderr)
        return 1
    return 0
