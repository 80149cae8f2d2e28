"""Times per iteration of many runs: a class, several machines, several commits.

    python -m staff timings RUN_DIR_OR_ZIP ... [--output_dir timings]

Zips are read where they are, also in folders. Machines are told apart by host name, processor and
the record's machine_id; records of earlier versions have none, and the page says where that may
have taken several machines for one. Each run is compared with task 1 on its own machine
and, where it had --time_all_reduce or sync_times.py has run there, with a flat all_reduce. Ratios
are of medians, with a bootstrap confidence interval (95 %); where rounds of runs were interleaved
(rounds.py), they are paired by round. Writes timings.csv and timings.html, a
self-contained page that needs no network.
"""

import argparse
import csv
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from common.files import whole, write_whole
from common.tasks import COMPARED
from grading.hand_in.safe_text import for_csv, for_html, line, visible
from staff.timing.machines import counted_as_one

BASELINE = COMPARED[0].key
TEMPLATE = Path(__file__).with_name("timings.html")
COLUMNS = {  # key of a row -> heading
    "name": "run",
    "task": "task",
    "machine": "machine",
    "workers": "workers",
    "iterations": "iterations",
    "median": "median, s",
    "spread": "middle half, s",
    "ratio": f"/ task {BASELINE}",
    "interval": "95 % interval",
    "verdict": "verdict",
    "flat": "sync / flat all_reduce",
    "flags": "not comparable",
}
POOLED = "counted as one machine each, as their records have only its name and processor:"
RANGES = ("spread", "interval")  # columns with two numbers
SECONDS = ("median", "spread")
Rows = Sequence[dict[str, Any]]
Skipped = Sequence[tuple[str, str]]  # name and reason


def as_text(rows: Rows, tasks: Rows, skipped: Skipped, pooled: Sequence[str] = ()) -> str:
    """All of it as text for a terminal."""
    keys = [key for key in COLUMNS if key != "machine"]
    heads = [COLUMNS[key] for key in keys]
    cells = [heads, *([line(shown(row[key])) for key in keys] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(each, widths, strict=True)).rstrip()
        for each in cells
    ]
    lines += ["", f"task / task {BASELINE}, median over the comparable runs:"]
    for task in tasks:
        interval = shown(task["interval"]) or "one run"
        found = f"  {line(task['task'])}: {task['ratio']:.3f} ({interval}), {task['runs']} runs"
        lines.append(found + (f": {task['verdict']}" if task["verdict"] else ""))
    if not tasks:
        lines.append(f"  none: no comparable run has a task {BASELINE} on its machine")
    machines = sorted({row["machine"] for row in rows})
    lines += ["", "machines:", *(f"  {line(machine)}" for machine in machines)]
    if pooled:
        lines += ["", POOLED, *(f"  {line(each)}" for each in pooled)]
    if skipped:
        lines += ["", f"skipped: {len(skipped)}", *reasons(skipped)]
    return "\n".join(lines)


def reasons(skipped: Skipped) -> list[str]:
    """A line for each run that was skipped."""
    return [f"  {line(name)}: {line(reason)}" for name, reason in skipped]


def shown(value: Any) -> str:
    """A cell as text."""
    if isinstance(value, list):
        return "" if value[0] != value[0] else f"{value[0]:.3f} to {value[1]:.3f}"
    if isinstance(value, float):
        return "" if value != value else f"{value:.3f}"
    return str(value)


def write_csv(path: Path, rows: Rows) -> None:
    """The rows, with units in the heads, and the ends of intervals in separate columns."""
    with whole(path) as part, part.open("w", newline="", encoding="utf-8") as file:
        out = csv.writer(file)
        out.writerow(name for key in COLUMNS for name in csv_heads(key))
        for row in rows:
            values = (row[key] if key in RANGES else [row[key]] for key in COLUMNS)
            out.writerow(for_csv(value) for each in values for value in each)


def csv_heads(key: str) -> list[str]:
    """The names of a column's one or two columns in the CSV."""
    unit = " (s)" if key in SECONDS else ""
    return [f"{key} low{unit}", f"{key} high{unit}"] if key in RANGES else [key + unit]


def write_page(
    path: Path, rows: Rows, tasks: Rows, skipped: Skipped, pooled: Sequence[str] = ()
) -> None:
    """One HTML file with its data inside, in which no text of a record can become markup."""
    data = {"columns": COLUMNS, "rows": rows, "tasks": tasks, "skipped": skipped}
    data |= {"pooled": pooled, "pooled_title": POOLED}
    text = json.dumps(plain(data))
    page = TEMPLATE.read_text(encoding="utf-8")
    write_whole(path, page.replace("@DATA@", for_html(text, most=len(text))))


def plain(value: Any) -> Any:
    """A value for JSON: no NaN, and no control or direction characters that act."""
    if isinstance(value, dict):
        return {key: plain(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(each) for each in value]
    if isinstance(value, str):
        return visible(value)
    return None if isinstance(value, float) and value != value else value


def main(argv: list[str] | None = None) -> int:
    """Compare the runs; returns the exit code: 2 if there is none to compare."""
    parser = argparse.ArgumentParser(
        prog="python -m staff timings",
        description="Compare the times per iteration of many runs.",
    )
    parser.add_argument("runs", nargs="+", metavar="RUN_DIR_OR_ZIP", help="or a folder of them")
    parser.add_argument(
        "--output_dir",
        type=Path,
        default=Path("timings"),
        help="where timings.csv and timings.html go (default: timings)",
    )
    args = parser.parse_args(argv)
    from staff.timing.class_runs import load_all  # after --help, as scipy takes seconds to load
    from staff.timing.compare import by_task, compare

    runs, skipped, flat = load_all(args.runs)
    if not runs:
        print("staff timings: no run could be read:", *reasons(skipped), sep="\n", file=sys.stderr)
        return 2
    rows = compare(runs, flat)
    tasks = by_task(rows)
    pooled = counted_as_one((run.name, run.machine, run.machine_id) for run in runs)
    print(as_text(rows, tasks, skipped, pooled))
    args.output_dir.mkdir(parents=True, exist_ok=True)
    write_csv(args.output_dir / "timings.csv", rows)
    write_page(args.output_dir / "timings.html", rows, tasks, skipped, pooled)
    for name in ("timings.csv", "timings.html"):
        print(f"written: {args.output_dir / name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
