"""A run inside the lab: workers on its nodes, what every node carries, and what is broken when.

Started by cluster.netlab in the lab's namespaces; `python -m cluster.netlab --help` says how.
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from itertools import pairwise
from pathlib import Path

from cluster import lab_network, netlab
from cluster.launch import launch, threads_each
from common.errors import UserError
from common.files import write_whole
from common.record.traffic import expected_bytes, sample

POLL = 0.01  # seconds between two looks at the steps done
COLLECTIVES = {
    "2a": ("gather", "scatter"),
    "2b": ("all_reduce",),
    "3": ("all_reduce",),
}


class Observer(threading.Thread):
    """Follows the lines that a run's ranks write for each step, and acts on them.

    `snapshots` holds the counters of every node: when rank 0 begins, and after each of its steps.
    From then on every node's bytes per second are written, too. A step file counts from the moment
    that this run has opened it: a command that the scripts refuse leaves a folder as it was.
    """

    def __init__(self, nodes, folder, breaks):
        super().__init__(daemon=True)
        self.nodes, self.folder, self.breaks = nodes, folder, list(breaks)
        self.began, self.over, self.workers = time.time(), threading.Event(), []
        self.steps, self.read, self.snapshots = {}, {}, []  # by rank: steps and bytes read

    def run(self):
        while not self.over.wait(POLL):
            self.look()

    def look(self):
        """Count the steps of every rank; take a snapshot and break what is due."""
        for node in self.nodes:
            path = self.folder / f"steps.rank{node.number}.jsonl"
            if path.exists() and path.stat().st_mtime >= self.began:
                with path.open("rb") as file:
                    file.seek(self.read.get(node.number, 0))
                    new = file.read()
                self.read[node.number] = self.read.get(node.number, 0) + len(new)
                self.steps[node.number] = self.steps.get(node.number, 0) + new.count(b"\n")
        if self.steps.get(0, -1) >= len(self.snapshots):
            if not self.snapshots:
                self.sample()
            now = lab_network.counters(self.nodes)
            self.snapshots += [now] * (self.steps[0] + 1 - len(self.snapshots))
        for todo in [b for b in self.breaks if self.steps.get(b.node, -1) >= b.step - 1]:
            self.breaks.remove(todo)
            print(f"netlab: {todo}", file=sys.stderr, flush=True)
            if todo.how == "kill":
                self.workers[todo.node].process.send_signal(signal.SIGKILL)
            elif todo.how == "cut":
                self.nodes[todo.node].cut()
            else:
                self.nodes[todo.node].shape(todo.rate)

    def sample(self):
        """Start writing each node's bytes per second."""
        for node in self.nodes:
            path = self.folder / f"net.{node.name}.csv"
            writing = (path, "eth0", node.counters, self.over)
            threading.Thread(target=sample, args=writing, daemon=True).start()

    def finish(self):
        """Stop following; one last look, as a run's end may have outrun us."""
        self.over.set()
        self.join()
        self.look()


def run(args):
    """Run the command on the lab's nodes; returns its exit code."""
    nodes = lab_network.build(args.rate, args.latency)
    folder = output_dir(args.command)
    if args.breaks and not folder:
        raise UserError("--cut, --kill and --slow follow the steps in the script's --output_dir")
    observer = Observer(nodes, folder, args.breaks) if folder else None

    def started(team):
        if observer:
            observer.workers = team
            observer.start()

    result = launch(
        args.command,
        len(nodes),
        quiet=args.quiet,
        master_ip=nodes[0].address,
        prefix=lambda rank: nodes[rank].prefix(),
        started=started,
    )
    if args.quiet and result.code:
        print(result.summary(), file=sys.stderr)
    if observer:
        observer.finish()
        for todo in observer.breaks:
            print(f"netlab: not done, as the run ended before: {todo}", file=sys.stderr)
    if observer and observer.snapshots:
        path = folder / "run.json"  # a script that is not one of ours leaves none
        facts = json.loads(path.read_text()) if path.exists() and not result.code else {}
        told = carried(facts, observer.snapshots, args.rate, epochs_of(folder))
        write_whole(folder / "netlab.json", json.dumps(told, indent=1) + "\n")
        if told["iterations"]:
            print(table(told))
    return result.code


def output_dir(command):
    """The folder that a command's --output_dir names, or None."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    parser.add_argument("--output_dir", type=Path)
    return parser.parse_known_args(command)[0].output_dir


def epochs_of(folder):
    """The epoch of each step of rank 0, in order; empty for scripts that tell none."""
    try:
        lines = (folder / "steps.rank0.jsonl").read_text().splitlines()
        return [json.loads(line)["epoch"] for line in lines]
    except (OSError, ValueError, KeyError, TypeError):
        return []


def carried(facts, snapshots, rates, epochs=()):
    """What each node sent and received, in bytes, counted and expected.

    Per iteration it is the mean of all but the first. A node's `epochs` are (sent, received) in
    each epoch, from the end of the one before: evaluation and, in the first, DDP's copy of the
    weights included. `epochs` has the epoch of each step.
    """
    iterations = max(0, len(snapshots) - 2)
    told = {"rates": rates, "iterations": iterations, "snapshots": snapshots, "nodes": []}
    epochs = epochs[: max(0, len(snapshots) - 1)]
    ends = [0, *(max(i for i, e in enumerate(epochs, 1) if e == n) for n in sorted(set(epochs)))]
    for node in range(len(rates)):
        sent, received = ([snap[node][way] for snap in snapshots] for way in (0, 1))
        row = {"node": node, "rate": rates[node], "expected": expected(facts, node)}
        row["epochs"] = [
            (sent[end] - sent[start], received[end] - received[start])
            for start, end in pairwise(ends)
        ]
        if iterations:
            row["sent"] = (sent[-1] - sent[1]) / iterations
            row["received"] = (received[-1] - received[1]) / iterations
        told["nodes"].append(row)
    return told


def expected(facts, rank):
    """(sent, received) of a rank in an iteration, in bytes; None for what we do not know."""
    if not facts:
        return None
    method = facts["arguments"].get("method") or facts["task"].removeprefix("task")
    size = facts["gradient_bytes"]
    if facts["arguments"].get("gradient_dtype") == "bfloat16":
        size //= 2
    if method not in COLLECTIVES:
        return None
    ways = [expected_bytes(op, rank, facts["world_size"], size) for op in COLLECTIVES[method]]
    return tuple(sum(way) for way in zip(*ways, strict=True))


def table(told):
    """What each node carries, as text."""
    lines = [
        f"what each node carries, MB per iteration (mean of {told['iterations']}, first discarded)",
        f"{'node':6}{'link':>9}{'sends':>11}{'expected':>10}{'':>9}{'receives':>11}{'expected':>10}",
    ]
    for row in told["nodes"]:
        line = f"{row['node']:<6}{row['rate']:>9}"
        for way, name in enumerate(("sent", "received")):
            line += f"{row[name] / 1e6:11.3f}"
            if row["expected"] and row["expected"][way]:
                awaited = row["expected"][way]
                line += f"{awaited / 1e6:10.3f}{100 * (row[name] / awaited - 1):+8.2f}%"
            else:
                line += f"{'':19}"
        lines.append(line.rstrip())
    for number in range(len(told["nodes"][0]["epochs"])):
        each = (node["epochs"][number] for node in told["nodes"])
        sizes = ", ".join(f"{sent / 1e6:.1f} / {received / 1e6:.1f}" for sent, received in each)
        lines.append(f"epoch {number + 1}, MB sent / received by each node: {sizes}")
    return "\n".join(lines)


def shell(args):
    """A shell on every node, in tmux's panes; without tmux or a terminal, one on node 0."""
    nodes = lab_network.build(args.rate, args.latency)
    env = {name: value for name, value in os.environ.items() if name != "TMUX"}
    env.setdefault("OMP_NUM_THREADS", str(threads_each(len(nodes))))
    env["TMUX_TMPDIR"] = "/run"  # the lab's own
    own = [*nodes[0].prefix(), env.get("SHELL", "/bin/sh")]
    print("the nodes:", *(f"{node.name} is {node.address};" for node in nodes))
    place = f"--master_ip {nodes[0].address} --master_port 6585 --world_size {len(nodes)}"
    print(f"add to a task's command: {place} --local_rank R (the node's number)", flush=True)
    if not shutil.which("tmux") or not sys.stdin.isatty():
        print(f"this is node 0; another one, say 1, from another terminal: {netlab.joining(1)}",
              flush=True)  # fmt: skip
        return subprocess.run(own, env=env).returncode
    tmux = ["tmux", "new-session", *own]
    for node in nodes[1:]:
        tmux += [";", "split-window", *node.prefix(), own[-1], ";", "select-layout", "tiled"]
    return subprocess.run([*tmux, ";", "select-pane", "-t", "0"], env=env).returncode


def main(argv=None):
    """Run in the lab's namespaces; returns the exit code."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # we are PID 1
    args = netlab.parse(argv)
    try:
        return shell(args) if args.shell else run(args)
    except UserError as error:
        print(f"netlab: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 128 + signal.SIGINT


if __name__ == "__main__":
    sys.exit(main())
