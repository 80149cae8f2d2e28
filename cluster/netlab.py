"""A cluster of N nodes on this machine: network namespaces, joined by links with a rate.

    python -m cluster.netlab --nodes 4 --rate 1gbit task2a/run_glue.py [its arguments ...]
    python -m cluster.netlab shell --nodes 4

The first runs a worker on every node, as cluster.launch does on this machine's own network, and
then prints what each node carried. The second opens a shell on every node. Node 0 is 10.10.1.1, and
nodes see nothing but each other. Linux only; as root, or where user namespaces are allowed.
"""

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

from cluster import lab_network
from cluster.lab_flags import INSIDE, parse
from common.errors import UserError

import psutil


def main(argv: list[str] | None = None) -> int:
    """Enter the lab's namespaces and run there (cluster.lab); returns the exit code."""
    argv = list(sys.argv[1:] if argv is None else argv)
    try:
        args = parse(argv, __doc__)
        if reason := lab_network.missing():
            raise UserError(reason)
    except UserError as error:
        print(f"netlab: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    command = lab_network.inside([sys.executable, "-m", "cluster.lab_start", *argv], args.shell)
    root = "root" if os.geteuid() == 0 else "user"
    env = {**os.environ, INSIDE: f"{os.getpid()} {root}"}
    if args.shell:
        os.execvpe(command[0], command, env)
    process = subprocess.Popen(command, env=env, start_new_session=True)

    forward_signals(process)
    code = process.wait()
    return code if code >= 0 else 128 - code


def forward_signals(process: subprocess.Popen) -> None:
    """Hand the signals that end a run on to the lab's first process, the child of `process`."""

    def forward(number, _):
        with contextlib.suppress(psutil.NoSuchProcess):
            inner = psutil.Process(process.pid).children()
            for child in inner:
                while not ready(child):
                    time.sleep(0.01)
                child.send_signal(number)
            if not inner:
                process.kill()

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, forward)


def ready(process: psutil.Process) -> bool:
    """Whether cluster.lab_start has its handlers, of which SIGTERM's is one; or has ended."""
    with contextlib.suppress(FileNotFoundError):
        status = Path(f"/proc/{process.pid}/status").read_text()
        caught = re.search(r"SigCgt:\s*(\w+)", status)
        return not caught or bool(int(caught[1], 16) >> (signal.SIGTERM - 1) & 1)
    return True


if __name__ == "__main__":
    sys.exit(main())
