"""The lab's command line: nodes, rates, and what to break at which step."""

import argparse
import re
from dataclasses import dataclass

from cluster import lab_network
from cluster.launch import check
from common.commands import Parser, program
from common.errors import UserError
from common.units import bits_per_second

USAGE = "[shell] [--nodes N|W,W,...] [--rate RATE] SCRIPT [ARGUMENTS ...]"
INSIDE = "NETLAB_OUTSIDE_PID"  # set by us for the process in the lab
BREAKS = {
    "cut": "take the node's link down when its step begins",
    "kill": "kill the node's worker (SIGKILL)",
    "slow": "give the node's link another rate",
}


@dataclass(frozen=True)
class Break:
    """Something to break: at the beginning of a node's step, counted from 1."""

    how: str
    node: int
    step: int
    rate: str = ""  # for "slow" alone

    def __str__(self) -> str:
        what = {
            "cut": "its link is cut",
            "kill": "its worker is killed",
            "slow": f"its link is slowed to {self.rate}",
        }
        return f"node {self.node}, step {self.step}: {what[self.how]}"


def parse(argv: list[str], description: str | None = None) -> argparse.Namespace:
    """The command line; raises UserError for what makes no sense."""
    parser = Parser(usage=f"{program()} {USAGE}", description=description, allow_abbrev=False)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument(
        "--nodes",
        default="4",
        help="how many, or each one's number of workers, as 4,2,1 (default: 4)",
    )
    parser.add_argument(
        "--rate",
        default="1gbit",
        metavar="RATE[,RATE...]",
        help="each way, of all links or of each (default: 1gbit)",
    )
    parser.add_argument("--latency", metavar="TIME", help="of every node's link, such as 5ms")
    for how, text in BREAKS.items():
        shape = "NODE@STEP=RATE" if how == "slow" else "NODE@STEP"
        parser.add_argument(f"--{how}", action="append", default=[], help=text, metavar=shape)
    parser.add_argument("--restarts", type=int, default=0, help="after failures (default: 0)")
    parser.add_argument("--quiet", action="store_true", help="show nothing that workers print")
    parser.add_argument("command", nargs=argparse.REMAINDER, help="SCRIPT and its arguments")
    shell = argv[:1] == ["shell"]
    args = parser.parse_args(argv[shell:])
    args.shell = shell
    args.workers = _workers(args.nodes)
    args.nodes = len(args.workers)
    if shell and max(args.workers) > 1:
        raise UserError("shell: starts no workers; give --nodes the number of nodes")
    args.rate = _rates(args.rate, args.nodes)
    args.breaks = [_break(how, text, args.nodes) for how in BREAKS for text in getattr(args, how)]
    if not shell:
        check(args.command, sum(args.workers))
    return args


def _workers(text: str) -> list[int]:
    """The number of workers of each node."""
    words = text.split(",")
    if not all(word.isdecimal() for word in words):
        raise UserError(
            f"--nodes {text}: give a number of nodes, or each one's number of workers, as 4,2,1"
        )
    most = lab_network.MOST_NODES
    alone = [1] * min(int(words[0]), most + 1)
    workers = [int(word) for word in words] if len(words) > 1 else alone
    if not 1 <= len(workers) <= most or not all(workers):
        raise UserError(f"--nodes {text}: must be 1 to {most} nodes, with a worker or more on each")
    return workers


def _rates(text: str, nodes: int) -> list[str]:
    """The rate of each node's link."""
    rates = text.split(",")
    if len(rates) not in (1, nodes):
        raise UserError(f"--rate {text}: give one rate, or one for each of {nodes} nodes")
    for rate in rates:
        bits_per_second(rate)
    return rates * nodes if len(rates) == 1 else rates


def _break(how: str, text: str, nodes: int) -> Break:
    shape = r"(\d+)@(\d+)" + ("=(.+)" if how == "slow" else "()")
    found = re.fullmatch(shape, text)
    if not found or int(found[1]) >= nodes or int(found[2]) < 1:
        wanted = "NODE@STEP=RATE, as 2@5=10mbit" if how == "slow" else "NODE@STEP, as 2@5"
        raise UserError(f"--{how} {text}: write {wanted}; nodes are 0 to {nodes - 1}, steps from 1")
    if how == "slow":
        bits_per_second(found[3])
    return Break(how, int(found[1]), int(found[2]), found[3])
