"""Shares of communication in traced steps: how much there is, and how much computing hides.

    python -m report traces RUN_DIR ...

Reads the Chrome traces that `--trace STEPS` writes. A step's communication is the time in which at
least one collective is running; it is hidden while the backward pass computes at the same time.
"""

import argparse
import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from common.commands import program
from common.errors import UserError
from common.tables import text_table

COLLECTIVES = ("gloo:", "nccl:")
BACKWARD = "autograd::engine::evaluate_function"
Span = tuple[float, float]  # start and end


def load_trace(path: Path) -> list[dict]:
    """The complete events of a Chrome trace: dicts of name, ts and dur in microseconds."""
    try:
        events = json.loads(path.read_text())["traceEvents"]
        return [event for event in events if event.get("ph") == "X" and "dur" in event]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"{path}: cannot be read as a trace ({error!r}); write one with --trace 3"
        ) from None


def union(spans: Iterable[Span]) -> list[Span]:
    """Spans (start, end) that may overlap as ones that do not, in order."""
    joined: list[Span] = []
    for start, end in sorted(spans):
        if joined and start <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
        else:
            joined.append((start, end))
    return joined


def overlap(these: Sequence[Span], those: Sequence[Span]) -> float:
    """How long two lists of disjoint spans overlap."""
    return sum(
        max(0, min(a_end, b_end) - max(a_start, b_start))
        for a_start, a_end in these
        for b_start, b_end in those
    )


def shares(events: Sequence[dict]) -> list[dict[str, float]]:
    """A dict for each traced step: seconds of the step, of its communication, and hidden of it."""
    found = []
    for step in sorted((e for e in events if e["name"].startswith("ProfilerStep")), key=start_of):
        within = [e for e in events if step["ts"] <= e["ts"] < step["ts"] + step["dur"]]
        sent = union(span(e) for e in within if e["name"].startswith(COLLECTIVES))
        backward = union(span(e) for e in within if e["name"].startswith(BACKWARD))
        found.append(
            {
                "step": step["dur"] / 1e6,
                "communication": overlap(sent, [span(step)]) / 1e6,
                "hidden": overlap(sent, backward) / 1e6,
            }
        )
    return found


def start_of(event: dict) -> float:
    """When an event began."""
    return event["ts"]


def span(event: dict) -> Span:
    """(start, end) of an event."""
    return event["ts"], event["ts"] + event["dur"]


def summary(folder: Path) -> list[dict[str, Any]]:
    """A row per rank of a run: mean milliseconds of a step, of communication, and hidden."""
    paths = sorted(folder.glob("trace.rank*.json"), key=lambda p: int(p.name[10:-5]))
    if not paths:
        raise UserError(f"{folder}: no trace.rank*.json; run the task with --trace 3")
    rows = []
    for path in paths:
        steps = shares(load_trace(path))
        if not steps:
            raise UserError(f"{path}: contains no step; run the task for more than one step")
        means = {key: sum(step[key] for step in steps) / len(steps) for key in steps[0]}
        rows.append({"rank": int(path.name[10:-5]), "steps": len(steps), **means})
    return rows


def text(folder: Path, rows: list[dict[str, Any]]) -> str:
    """The rows of one run as a table."""
    cells = []
    for row in rows:
        sent = row["communication"]
        hidden = f"{row['hidden'] / sent:.0%}" if sent else "-"
        times = [f"{1000 * row[key]:.1f}" for key in ("step", "communication")]
        cells.append(
            [f"rank {row['rank']}", row["steps"], *times, f"{sent / row['step']:.0%}", hidden]
        )
    heads = ["steps", "step, ms", "communication, ms", "share", "hidden by backward"]
    return text_table(f"communication in the traced steps of {folder.name}", heads, cells)


def main(argv: list[str] | None = None) -> int:
    """Print the shares; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog=program(),
        description="Show how much communication traced steps have, and how much computing hides.",
    )
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN_DIR", help="of --trace runs")
    args = parser.parse_args(argv)
    try:
        for folder in args.runs:
            print(text(folder, summary(folder)))
    except UserError as error:
        print(f"report.traces: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
