"""A run inside the lab: workers on its nodes, what every node carries, and what is broken when.

Started by cluster.lab_start in the lab's namespaces; `python -m cluster.netlab --help` says how.
"""

import argparse
import contextlib
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable
from pathlib import Path

from cluster import lab_network
from cluster.lab_flags import INSIDE, Break, parse
from cluster.lab_network import Node
from cluster.lab_traffic import carried, epochs_of, nodes_table
from cluster.launch import Place, launch_again, threads_each
from cluster.processes import Worker
from common.errors import UserError
from common.files import write_whole
from common.record.traffic import sample

POLL_SECONDS = 0.01  # between two looks at the steps done
AT_ONCE = os.SCHED_RR | os.SCHED_RESET_ON_FORK  # before the workers, which would have sent more


class Observer(threading.Thread):
    """Follows the lines that a run's ranks write for each step, and acts on them.

    `snapshots` holds the counters of every node: when the run begins, and after each step that all
    ranks have done. Then no byte of it is on its way: what rank 0 has sent last may be in its queue
    when rank 0 goes on. Meanwhile every node's bytes per second are written. A step file counts
    from the moment that this run has opened it: a command that the scripts refuse changes nothing
    in its folder.
    """

    def __init__(
        self, nodes: list[Node], workers_of: list[int], folder: Path, breaks: Iterable[Break]
    ) -> None:
        super().__init__(daemon=True)
        self.nodes = nodes
        self.first_rank = [sum(workers_of[:node]) for node in range(len(nodes))]
        self.world_size = sum(workers_of)
        self.folder = folder
        self.breaks = list(breaks)
        self.began = time.time()
        self.over = threading.Event()
        self.workers: list[Worker] = []
        self.steps: dict[int, int] = {}  # by rank
        self.bytes_read: dict[int, int] = {}  # of each rank's step file
        self.snapshots: list[list[tuple[int, int]]] = []

    def run(self) -> None:
        with contextlib.suppress(PermissionError):  # not root: on a busy machine it may look late
            os.sched_setscheduler(0, AT_ONCE, os.sched_param(1))
        while not self.over.wait(POLL_SECONDS):
            self.look()

    def look(self) -> None:
        """Count the steps of every rank; take a snapshot and break what is due."""
        for rank in range(self.world_size):
            self.count_steps(rank)
        done = min(self.steps.values(), default=-1)
        if done >= len(self.snapshots):
            if not self.snapshots:
                self.sample()
            now = lab_network.counters(self.nodes)
            self.snapshots += [now] * (done + 1 - len(self.snapshots))
        for due in [b for b in self.breaks if self.steps_of(b.node) >= b.step - 1]:
            self.breaks.remove(due)
            self.apply(due)

    def steps_of(self, node: int) -> int:
        """How many steps a node's first worker has ended; -1 before it has begun."""
        return self.steps.get(self.first_rank[node], -1)

    def count_steps(self, rank: int) -> None:
        """Read what a rank has written since the last look."""
        path = self.folder / f"steps.rank{rank}.jsonl"
        if path.exists() and path.stat().st_mtime >= self.began:
            with path.open("rb") as file:
                file.seek(self.bytes_read.get(rank, 0))
                new = file.read()
            self.bytes_read[rank] = self.bytes_read.get(rank, 0) + len(new)
            self.steps[rank] = self.steps.get(rank, 0) + new.count(b"\n")

    def apply(self, due: Break) -> None:
        """Break something now."""
        print(f"netlab: {due}", file=sys.stderr, flush=True)
        if due.how == "kill":
            self.workers[self.first_rank[due.node]].process.send_signal(signal.SIGKILL)
        elif due.how == "cut":
            self.nodes[due.node].cut()
        else:
            self.nodes[due.node].shape(due.rate)

    def sample(self) -> None:
        """Start writing each node's bytes per second."""
        for node in self.nodes:
            path = self.folder / f"net.{node.name}.csv"
            arguments = (path, "eth0", node.counters, self.over)
            threading.Thread(target=sample, args=arguments, daemon=True).start()

    def finish(self) -> None:
        """Stop following; look once more, as the run may have ended between two looks."""
        self.over.set()
        self.join()
        self.look()


def run_workers(args: argparse.Namespace) -> int:
    """Run the command on the lab's nodes; returns its exit code."""
    nodes = lab_network.build(args.rate, args.latency)
    folder = output_dir(args.command)
    if args.breaks and not folder:
        raise UserError("--cut, --kill and --slow follow the steps in the script's --output_dir")
    observers = [Observer(nodes, args.workers, folder, args.breaks)] if folder else []

    def on_start(team: list[Worker]) -> None:
        if not folder:
            return
        if observers[-1].workers:  # of the run that has failed
            observers[-1].finish()
            observers.append(Observer(nodes, args.workers, folder, observers[-1].breaks))
        observers[-1].workers = team
        observers[-1].start()

    node_of = [node for node, count in zip(nodes, args.workers, strict=True) for _ in range(count)]
    place = Place(nodes[0].address, lambda rank: node_of[rank].prefix())
    options = {"quiet": args.quiet, "place": place, "on_start": on_start}
    result = launch_again(args.restarts, args.command, len(node_of), **options)
    if args.quiet and result.code:
        print(result.summary(), file=sys.stderr)
    if folder:
        observers[-1].finish()
        for due in observers[-1].breaks:
            print(f"netlab: not done, because the run ended before: {due}", file=sys.stderr)
        if len(observers) > 1:
            print("netlab: no table of bytes, because the run was restarted", file=sys.stderr)
        elif observers[0].snapshots:
            slowed = [b for b in args.breaks if b.how == "slow" and b not in observers[0].breaks]
            now = {due.node: due.rate for due in slowed}
            rates = [now.get(node, rate) for node, rate in enumerate(args.rate)]
            report(folder, observers[0].snapshots, rates, succeeded=not result.code)
    return result.code


def report(folder: Path, snapshots: list, rates: list[str], succeeded: bool) -> None:
    """Write netlab.json and print what each node carried per iteration."""
    path = folder / "run.json"  # a script that is not one of ours writes none
    facts = json.loads(path.read_text()) if path.exists() and succeeded else {}
    traffic = carried(facts, snapshots, rates, epochs_of(folder))
    write_whole(folder / "netlab.json", json.dumps(traffic, indent=1) + "\n")
    if traffic["iterations"]:
        print(nodes_table(traffic))


def output_dir(command: list[str]) -> Path | None:
    """The folder that a command's --output_dir names, or None."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    parser.add_argument("--output_dir", type=Path)
    return parser.parse_known_args(command)[0].output_dir


def shell(args: argparse.Namespace) -> int:
    """A shell on every node, in tmux's panes; without tmux or a terminal, one on node 0."""
    nodes = lab_network.build(args.rate, args.latency)
    env = {name: value for name, value in os.environ.items() if name != "TMUX"}
    env.setdefault("OMP_NUM_THREADS", str(threads_each(len(nodes))))
    env["TMUX_TMPDIR"] = "/run"  # the lab's own
    shells = [[*node.prefix(), *shell_of(node, len(nodes))] for node in nodes]
    for node in nodes:
        print(welcome(node, len(nodes)), flush=True)
    if not shutil.which("tmux") or not sys.stdin.isatty():
        print(f"this is node 0; to open {nodes[-1].name}'s shell, from another terminal:", end=" ")
        print(joining(nodes[-1], len(nodes)), flush=True)
        return subprocess.run(shells[0], env=env).returncode
    tmux = ["tmux", "new-session", *shells[0]]
    for command in shells[1:]:
        tmux += [";", "split-window", *command, ";", "select-layout", "tiled"]
    return subprocess.run([*tmux, ";", "select-pane", "-t", "0"], env=env).returncode


def welcome(node: Node, nodes: int) -> str:
    """A node's name and address, and what to type there to run a task."""
    return (
        f"{node.name}, {node.address}: python task2a/run_glue.py ... --master_ip "
        f"{Node(0).address} --master_port 6585 --world_size {nodes} --local_rank {node.number}"
    )


def shell_of(node: Node, nodes: int) -> list[str]:
    """The user's shell on a node, where `python` is ours whatever their .bashrc does to PATH."""
    shell = os.environ.get("SHELL", "/bin/sh")
    if Path(shell).name != "bash":
        return [shell]
    start = Path("/run", f"{node.name}.bashrc")  # the lab's own
    start.write_text(
        "[ -f ~/.bashrc ] && . ~/.bashrc\n"
        f"PATH={shlex.quote(str(Path(sys.executable).parent))}:$PATH\nhash -r\n"
        f"PS1='({node.name}) \\w\\$ '\necho {shlex.quote(welcome(node, nodes))}\n"
    )
    return [shell, "--rcfile", str(start), "-i"]


def joining(node: Node, nodes: int) -> str:
    """The command that opens a shell on a node of the lab of this process, from outside."""
    parent, user = os.environ[INSIDE].split()
    enter = f"nsenter --target $(pgrep -P {parent}) --all "
    enter += "" if user == "root" else "--preserve-credentials "
    return enter + shlex.join([*node.prefix()[:4], *shell_of(node, nodes)])


def main(argv: list[str] | None = None) -> int:
    """Run in the lab's namespaces; returns the exit code."""
    args = parse(list(sys.argv[1:] if argv is None else argv))
    try:
        return shell(args) if args.shell else run_workers(args)
    except UserError as error:
        print(f"netlab: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
