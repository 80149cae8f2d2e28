"""A cluster of N nodes on this machine: network namespaces, joined by links with a rate.

    python -m cluster.netlab --nodes 4 --rate 1gbit task2a/run_glue.py [its arguments ...]
    python -m cluster.netlab shell --nodes 4

The first runs a worker on every node, as cluster.launch does on this machine's own network, and
ends with what each node carried. The second opens a shell on every node. Node 0 is 10.10.1.1, and
nodes see nothing but each other. Linux only; as root, or where user namespaces are allowed.
"""

import argparse
import contextlib
import os
import re
import signal
import subprocess
import sys
from dataclasses import dataclass

from cluster import lab_network
from cluster.launch import check
from common.errors import UserError

import psutil

USAGE = "python -m cluster.netlab [shell] [--nodes N] [--rate RATE] SCRIPT [ARGUMENTS ...]"
INSIDE = "NETLAB_OUTSIDE_PID"  # set by us for the process in the lab


@dataclass(frozen=True)
class Break:
    """Something to break: at the beginning of a node's step, counted from 1."""

    how: str
    node: int
    step: int
    rate: str | None = None

    def __str__(self):
        what = {
            "cut": "its link is cut",
            "kill": "its worker is killed",
            "slow": f"its link is slowed to {self.rate}",
        }
        return f"node {self.node}, step {self.step}: {what[self.how]}"


def parse(argv=None):
    """The command line; raises UserError for what makes no sense."""
    argv = list(sys.argv[1:] if argv is None else argv)
    parser = argparse.ArgumentParser(usage=USAGE, description=__doc__, allow_abbrev=False)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.error = _bad_usage
    parser.add_argument("--nodes", type=int, default=4, help="how many (default: 4)")
    parser.add_argument("--rate", default="1gbit", metavar="RATE[,RATE...]",
                        help="each way, of all links or of each (default: 1gbit)")  # fmt: skip
    parser.add_argument("--latency", metavar="TIME", help="of every node's link, such as 5ms")
    for how, text in (
        ("cut", "take the node's link down when its step begins"),
        ("kill", "kill the node's worker (SIGKILL)"),
        ("slow", "give the node's link another rate"),
    ):
        parser.add_argument(f"--{how}", action="append", default=[], help=text,
                            metavar="NODE@STEP" + ("=RATE" if how == "slow" else ""))  # fmt: skip
    parser.add_argument("--quiet", action="store_true", help="show nothing that workers print")
    parser.add_argument("command", nargs=argparse.REMAINDER, help="SCRIPT and its arguments")
    shell = argv[:1] == ["shell"]
    args = parser.parse_args(argv[shell:])
    args.shell = shell
    if not 1 <= args.nodes <= lab_network.MOST_NODES:
        raise UserError(f"--nodes {args.nodes}: give 1 to {lab_network.MOST_NODES}")
    rates = args.rate.split(",")
    if len(rates) not in (1, args.nodes):
        raise UserError(f"--rate {args.rate}: give one rate, or one for each of {args.nodes} nodes")
    for rate in rates:
        lab_network.bits_per_second(rate)
    args.rate = rates * args.nodes if len(rates) == 1 else rates
    args.breaks = [_break(how, text, args.nodes)
                   for how in ("cut", "kill", "slow") for text in getattr(args, how)]  # fmt: skip
    if not shell:
        check(args.command, args.nodes)
    return args


def _break(how, text, nodes):
    shape = r"(\d+)@(\d+)" + ("=(.+)" if how == "slow" else "")
    found = re.fullmatch(shape, text)
    if not found or int(found[1]) >= nodes or int(found[2]) < 1:
        wanted = "NODE@STEP=RATE, as 2@5=10mbit" if how == "slow" else "NODE@STEP, as 2@5"
        raise UserError(f"--{how} {text}: write {wanted}; nodes are 0 to {nodes - 1}, steps from 1")
    if how == "slow":
        lab_network.bits_per_second(found[3])
    return Break(how, int(found[1]), int(found[2]), *found.groups()[2:])


def joining(node):
    """The command that opens a shell on a node of the lab of this process, from outside."""
    user = [] if os.environ[INSIDE].endswith("root") else ["--preserve-credentials"]
    parent = os.environ[INSIDE].split()[0]
    enter = ["nsenter", "--target", f"$(pgrep -P {parent})", "--all", *user]
    return " ".join([*enter, *lab_network.Node(node).prefix()[:4], "$SHELL"])


def main(argv=None):
    """Enter the lab's namespaces and run there (cluster.lab); returns the exit code."""
    argv = list(sys.argv[1:] if argv is None else argv)
    try:
        args = parse(argv)
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


def _bad_usage(message):
    raise UserError(f"{message}: use {USAGE}")


if __name__ == "__main__":
    sys.exit(main())
