"""What each node of the lab carried in a run, measured and expected."""

import json
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from common.record.traffic import RECORDED, expected_bytes
from common.tasks import BY_KEY

Snapshot = Sequence[tuple[int, int]]  # bytes sent and received so far, of each node


def epochs_of(folder: Path) -> list[int]:
    """The epoch of each step of rank 0, in order; empty for scripts that do not record it."""
    try:
        lines = (folder / "steps.rank0.jsonl").read_text().splitlines()
        return [json.loads(line)["epoch"] for line in lines]
    except (OSError, ValueError, KeyError, TypeError):
        return []


def carried(
    facts: dict, snapshots: Sequence[Snapshot], rates: Sequence[str], epochs: Sequence[int] = ()
) -> dict:
    """What each node sent and received, in bytes, measured and expected.

    Per iteration it is the mean of all but the first. A node's `epochs` are (sent, received) in
    each epoch, from the end of the one before: evaluation and, in the first, DDP's copy of the
    weights included. `epochs` has the epoch of each step. This is netlab.json.
    """
    iterations = max(0, len(snapshots) - 2)
    epochs = epochs[: max(0, len(snapshots) - 1)]
    ends = [0, *(max(i for i, e in enumerate(epochs, 1) if e == n) for n in sorted(set(epochs)))]
    nodes = []
    for node in range(len(rates)):
        sent, received = ([snap[node][way] for snap in snapshots] for way in (0, 1))
        row = {"node": node, "rate": rates[node], "expected": expected(facts, node, len(rates))}
        row["epochs"] = [
            (sent[end] - sent[start], received[end] - received[start])
            for start, end in pairwise(ends)
        ]
        if iterations:
            row["sent"] = (sent[-1] - sent[1]) / iterations
            row["received"] = (received[-1] - received[1]) / iterations
        nodes.append(row)
    return {"rates": rates, "iterations": iterations, "snapshots": snapshots, "nodes": nodes}


def expected(facts: dict, rank: int, nodes: int) -> tuple[float, float] | None:
    """(sent, received) of a node in an iteration, in bytes; None for what we do not know."""
    if not facts:
        return None
    method = facts["arguments"].get("method") or facts["task"].removeprefix("task")
    size = facts["gradient_bytes"]
    if facts["arguments"].get("gradient_dtype") == "bfloat16":
        size //= 2
    collectives = BY_KEY[method].collectives if method in BY_KEY else ()
    several = facts["world_size"] > nodes  # on a node: they also send past its link
    if several or not collectives or not set(collectives) <= set(RECORDED):
        return None
    ways = [expected_bytes(op, rank, facts["world_size"], size) for op in collectives]
    return sum(sent for sent, _ in ways), sum(received for _, received in ways)


def nodes_table(traffic: dict) -> str:
    """What each node carries, as text."""
    count = traffic["iterations"]
    lines = [
        f"what each node carries, MB per iteration (mean of {count}, the first discarded)",
        f"{'node':6}{'link':>9}{'sends':>11}{'expected':>10}{'':9}{'receives':>11}{'expected':>10}",
    ]
    for row in traffic["nodes"]:
        line = f"{row['node']:<6}{row['rate']:>9}"
        for way, name in enumerate(("sent", "received")):
            line += f"{row[name] / 1e6:11.3f}"
            if row["expected"] and row["expected"][way]:
                due = row["expected"][way]
                line += f"{due / 1e6:10.3f}{100 * (row[name] / due - 1):+8.2f}%"
            else:
                line += f"{'':19}"
        lines.append(line.rstrip())
    for number in range(len(traffic["nodes"][0]["epochs"])):
        each = (node["epochs"][number] for node in traffic["nodes"])
        sizes = ", ".join(f"{sent / 1e6:.1f} / {received / 1e6:.1f}" for sent, received in each)
        lines.append(f"epoch {number + 1}, MB sent / received by each node: {sizes}")
    return "\n".join(lines)
