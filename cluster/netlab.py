"""A cluster of N nodes on this machine: network namespaces, joined by links with a rate.

    python -m cluster.netlab --nodes 4 --rate 1gbit task2a/run_glue.py [its arguments ...]
    python -m cluster.netlab shell --nodes 4

The first runs a worker on every node, as cluster.launch does on this machine's own network, and
then prints what each node carried. The second opens a shell on every node. Node 0 is 10.10.1.1, and
nodes see nothing but each other. Linux only; as root, or where user namespaces are allowed.
"""

import contextlib
import os
import signal
import subprocess
import sys

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
    command = lab_network.inside([sys.executable, "-m", "cluster.lab", *argv], args.shell)
    root = "root" if os.geteuid() == 0 else "user"
    env = {**os.environ, INSIDE: f"{os.getpid()} {root}"}
    if args.shell:
        os.execvpe(command[0], command, env)
    process = subprocess.Popen(command, env=env, start_new_session=True)

    def forward(number, _):
        with contextlib.suppress(psutil.NoSuchProcess):
            inner = psutil.Process(process.pid).children()
            for child in inner:
                child.send_signal(number)
            if not inner:
                process.kill()

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, forward)
    code = process.wait()
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main())
