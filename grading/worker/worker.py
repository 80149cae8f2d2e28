"""In a new process: be what `python SCRIPT ARGUMENTS` would be, watched and held in."""

import atexit
import contextlib
import faulthandler
import gc
import os
import random
import resource
import runpy
import signal
import sys
import threading
import traceback

from common.tasks import TASKS
from grading.plan import STACK_SIGNAL
from grading.worker.isolation import become
from grading.worker.probe import Probe

import numpy as np
import torch

OURS = {
    *("common", "cluster", "experiments", "grading", "report", "staff", "tests"),
    *("conftest", "download_glue_data", *TASKS),
}
ENVIRONMENT = {"PATH": os.defpath, "LANG": "C.UTF-8", "PYTHONUNBUFFERED": "1"}
ENVIRONMENT |= {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TORCH_CPP_LOG_LEVEL": "FATAL"}
ENVIRONMENT |= {"GLOO_SOCKET_IFNAME": "lo" if sys.platform == "linux" else "lo0"}
BASE = 16 * 2**30  # bytes of address space that torch maps without using it


def work(command, run, events, stack, output, error):
    """Run one worker's command; never returns. The last four are open file descriptors."""
    code = 1
    try:
        settle(command, run, events, stack, output, error)
        file = os.fdopen(events, "w", encoding="ascii")
        Probe(file, str(run.folder), run.learning_rate, run.pause).install()
        code = run_script(command)
    except BaseException:
        traceback.print_exc()
    with contextlib.suppress(BaseException):
        threading._shutdown()
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)


def settle(command, run, events, stack, output, error):
    """Standard streams, environment, limits, user and modules as a fresh process has them."""
    for number, descriptor in ((0, os.open(os.devnull, os.O_RDONLY)), (1, output), (2, error)):
        os.dup2(descriptor, number)
    withhold({0, 1, 2, events, stack})
    sys.stdout = open(1, "w", encoding="utf-8", errors="replace", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", encoding="utf-8", errors="replace", closefd=False)  # noqa: SIM115
    signal.signal(signal.SIGINT, signal.default_int_handler)
    faulthandler.register(STACK_SIGNAL, file=stack, all_threads=True)
    os.environ.clear()
    os.environ.update(ENVIRONMENT, HOME=str(run.folder), TMPDIR=str(run.folder), USER="student")
    os.chdir(run.folder)
    become(run.user)
    limit(run.limits, run.user)
    torch.set_num_threads(1)
    random.seed()
    np.random.seed()  # a fork would share its parent's state
    forget(run.folder, command[0])
    gc.enable()


def withhold(kept):
    """Put /dev/null in place of every other open descriptor: the grader's pipes are among them.

    They are not closed: objects from before the fork will do that, whatever has the number by then.
    """
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in range(3, max(map(int, os.listdir("/dev/fd"))) + 1):
        if descriptor not in kept and descriptor != nothing:
            with contextlib.suppress(OSError):
                os.fstat(descriptor)  # it is open
                os.dup2(nothing, descriptor)
    os.close(nothing)


def limit(limits, user):
    """Set what this process and its children may use."""
    bounds = {
        resource.RLIMIT_AS: BASE + limits.memory,
        resource.RLIMIT_FSIZE: limits.file,
        resource.RLIMIT_CPU: int(limits.seconds) + 5,
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_NOFILE: 512,
    }
    if user is not None:  # a user of its own: else all that this user runs would be counted
        bounds[resource.RLIMIT_NPROC] = limits.processes
    for which, most in bounds.items():
        hard = resource.getrlimit(which)[1]
        most = most if hard == resource.RLIM_INFINITY else min(most, hard)
        with contextlib.suppress(ValueError, OSError):  # macOS knows not all of them
            resource.setrlimit(which, (most, most))


def forget(folder, script):
    """Make the kit's own modules unknown: the submission's are found, or none."""
    for name in list(sys.modules):
        if name.split(".")[0] in OURS:
            del sys.modules[name]
    sys.meta_path[:] = [finder for finder in sys.meta_path if "__editable__" not in repr(finder)]
    libraries = [p for p in sys.path if p.endswith(("-packages", ".zip", "lib-dynload"))]
    standard = os.path.dirname(os.__file__)
    paths = [os.path.dirname(os.path.join(folder, script)), str(folder), standard, *libraries]
    sys.path[:] = list(dict.fromkeys(paths))
    sys.path_importer_cache.clear()


def run_script(command):
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
