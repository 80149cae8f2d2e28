"""A process that has loaded PyTorch, from which workers are forked: they start at once (Linux).

Between it and each worker is a nurse, a process that waits for the worker's end. On a pipe, its
`status`, the worker writes its process id, and the nurse the exit code.
"""

import json
import os
import runpy
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from cluster.processes import die_with, name_process
from common.errors import UserError

THREADS = "OMP_NUM_THREADS"
LARGEST_MESSAGE = 2**20  # bytes
NVIDIA = Path("/dev/nvidiactl")  # a fork of a process that has looked for CUDA cannot use it


class Template:
    """The process: started when it is first needed, ended at the end of the `with` block."""

    def __init__(self) -> None:
        self.environment: dict[str, str] | None = None
        self.connection: socket.socket | None = None

    def __enter__(self) -> "Template":
        return self

    def __exit__(self, *_: object) -> None:
        if self.connection:
            self.connection.close()  # at which the process ends
            self.process.wait()

    def ready(self, env: Mapping[str, str]) -> bool:
        """Whether workers with this environment can be forked; the process is then there.

        It takes the first one's variables, as libraries read most of them when they are loaded.
        Raises UserError if the process cannot load them.
        """
        others = {name: value for name, value in env.items() if name != THREADS}
        if sys.platform != "linux" or NVIDIA.exists() or not env[THREADS].isdigit():
            return False
        if self.environment is None:
            self.environment = others
            self.start()
        return others == self.environment

    def start(self) -> None:
        """Start the process, and wait until it has loaded everything."""
        self.connection, theirs = socket.socketpair(type=socket.SOCK_SEQPACKET)
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-u", "-m", "cluster.template", str(theirs.fileno())],
                cwd=Path(__file__).parents[1],
                env={**(self.environment or {}), THREADS: "1"},
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                pass_fds=[theirs.fileno()],
            )
        if not self.connection.recv(1):
            raise UserError("PyTorch could not be loaded, as said above: run `make setup`")

    def fork(
        self, command: Sequence[str], env: Mapping[str, str], **streams: int | None
    ) -> "Forked":
        """Start a worker of a script and its arguments; `streams` are as Popen has them."""
        assert self.connection, "ready() comes first"
        status, theirs = os.pipe()
        given, pipes = [theirs], {}
        for number, name in enumerate(("stdin", "stdout", "stderr")):
            stream = streams[name]
            if stream is None:
                stream = number
            elif stream == subprocess.PIPE:
                pipes[name], stream = os.pipe()
            elif stream == subprocess.DEVNULL:
                stream = os.open(os.devnull, os.O_RDWR)
            given.append(stream)
        message = json.dumps([os.getcwd(), env[THREADS], command]).encode()
        socket.send_fds(self.connection, [message], given)
        for descriptor in set(given) - {0, 1, 2, *streams.values()}:
            os.close(descriptor)
        return Forked(status, **pipes)


class Forked:
    """A worker that was forked: what is needed here of a subprocess.Popen."""

    def __init__(self, status: int, stdout: int | None = None, stderr: int | None = None) -> None:
        self.stdout = None if stdout is None else os.fdopen(stdout, "rb")
        self.stderr = None if stderr is None else os.fdopen(stderr, "rb")
        self.returncode: int | None = None
        self.status = os.fdopen(status)
        self.pid = int(self.status.readline() or 0)
        if not self.pid:
            raise UserError("no worker could be forked, as said above; --spawn starts them afresh")

    def wait(self, _timeout: float | None = None) -> int:
        """Its exit code, or minus the signal that ended it; one thread may wait."""
        with self.status:
            self.returncode = int(self.status.readline() or -signal.SIGKILL)
        return self.returncode

    def poll(self) -> int | None:
        """Its exit code once wait() has returned."""
        return self.returncode


def main() -> None:
    """Fork a worker for every request, until there are no more; in a worker, run its script."""
    launcher, template = os.getppid(), os.getpid()
    die_with(launcher)
    requests = socket.socket(fileno=int(sys.argv[1]))
    import common.preload  # noqa: F401

    requests.send(b".")
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the nurses
    while True:
        message, descriptors, *_ = socket.recv_fds(requests, LARGEST_MESSAGE, 4)
        if not message:
            return
        if os.fork() == 0:
            break
        for descriptor in descriptors:
            os.close(descriptor)
    requests.close()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    die_with(template)
    fork_worker(*descriptors)
    run_script(*json.loads(message))


def fork_worker(status: int, *streams: int) -> None:
    """As a nurse, fork the worker, report its end, and exit; in the worker, return."""
    nurse = os.getpid()
    if worker := os.fork():
        for descriptor in streams:
            os.close(descriptor)
        _, code = os.waitpid(worker, 0)
        os.write(status, b"%d\n" % os.waitstatus_to_exitcode(code))
        os._exit(0)
    os.setsid()
    die_with(nurse)
    for target, descriptor in enumerate(streams):
        os.dup2(descriptor, target)
        os.close(descriptor)
    os.write(status, b"%d\n" % os.getpid())
    os.close(status)


def run_script(folder: str, threads: str, command: list[str]) -> None:
    """Be what `python SCRIPT ARGUMENTS` would be in that folder."""
    import numpy
    import torch

    name_process(f"rank {command[-1]}")  # as the launcher's commands end
    os.chdir(folder)
    os.environ[THREADS] = threads
    torch.set_num_threads(min(int(threads), len(os.sched_getaffinity(0))))  # as torch itself
    numpy.random.seed()  # not the same for all workers
    for name in [name for name in sys.modules if name.partition(".")[0] in ("cluster", "common")]:
        del sys.modules[name]  # the script may have others
    sys.argv, script = command, command[0]
    sys.path[0] = os.path.dirname(os.path.abspath(script))
    try:
        runpy.run_path(script, run_name="__main__")
    except Exception as error:
        trace = error.__traceback__  # with the script's frames only
        while trace and trace.tb_next and trace.tb_frame.f_code.co_filename != script:
            trace = trace.tb_next
        sys.excepthook(type(error), error.with_traceback(trace), trace)
        sys.exit(1)


if __name__ == "__main__":
    main()
