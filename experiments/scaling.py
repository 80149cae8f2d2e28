"""How data-parallel training scales: tasks x workers x link rates in the lab, measured.

    python -m experiments.scaling --output_dir runs/sweep --data_dir DIR --task_name RTE \\
      --tasks 2a,2b,3 --workers 1,2,4 --rates 100mbit,1gbit,10gbit --batch 64 --steps 12 [--resume]

Strong scaling keeps the total batch at --batch; weak scaling keeps each worker's batch at what
--batch gives one of the most workers. One worker sends nothing: it runs once, as task 1. Every
flag that is not the sweep's own goes to the tasks. `python -m report.scaling` explains the result.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from cluster.lab_network import missing
from common.cli import comma_separated
from common.commands import program
from common.errors import UserError
from common.files import write_whole
from common.record.format import PHASES
from common.tasks import BY_KEY, COMPARED, VARIANTS
from common.units import bits_per_second
from experiments.command import KIT, choose_tasks, keys_of, training_command
from report import scaling
from report.runs import load_run

from tqdm import tqdm

ALONE = next(task for task in COMPARED if not task.distributed)
TASKS = [task for task in COMPARED if task.distributed]


class Cell(NamedTuple):
    """One measurement of the sweep: `batch` is of one worker, `rate` of every node's link."""

    task: str
    workers: int
    batch: int
    rate: str

    def __str__(self) -> str:
        return f"task{self.task}, {self.workers} x {self.batch}, {self.rate}"

    @property
    def folder(self) -> str:
        """The name of its run's folder."""
        return f"{self.task}-{self.workers}x{self.batch}-{self.rate}"


def parse(argv: list[str] | None) -> tuple[argparse.Namespace, list[str]]:
    """The sweep's own flags, and the rest, which are the tasks'; raises UserError."""
    parser = argparse.ArgumentParser(prog=program(), description=__doc__, allow_abbrev=False)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--tasks", default=keys_of(TASKS), help="default: %(default)s")
    parser.add_argument("--workers", type=comma_separated, default="1,2,4", help="default: 1,2,4")
    parser.add_argument(
        "--rates", type=comma_separated, default="100mbit,1gbit,10gbit", help="of each link"
    )
    parser.add_argument("--batch", type=int, default=64, help="total batch (default: 64)")
    parser.add_argument("--steps", type=int, default=12, help="per cell; the first is discarded")
    parser.add_argument("--resume", action="store_true", help="keep the cells that are done")
    parser.add_argument("--output_dir", type=Path, required=True, help="folder for all runs")
    args, flags = parser.parse_known_args(argv)
    args.tasks = [task.key for task in choose_tasks(args.tasks, [*TASKS, *VARIANTS])]
    try:
        args.workers = sorted({int(n) for n in args.workers})
        if not args.workers or args.workers[0] < 1 or any(args.batch % n for n in args.workers):
            raise ValueError
    except ValueError:
        raise UserError(
            f"--workers {args.workers}: give whole numbers from 1 that divide --batch {args.batch}"
        ) from None
    for rate in args.rates:
        bits_per_second(rate)
    if args.steps < 3:
        raise UserError(f"--steps {args.steps}: give 3 or more, because the first is discarded")
    return args, flags


def cells(args: argparse.Namespace) -> list[Cell]:
    """Every cell of the sweep once, the quick ones first."""
    most = args.workers[-1]
    found = {}
    for rate in sorted(args.rates, key=bits_per_second, reverse=True):
        for workers in args.workers:
            for batch in (args.batch // workers, args.batch // most):
                for task in args.tasks if workers > 1 else [ALONE.key]:
                    cell = Cell(task, workers, batch, rate if workers > 1 else args.rates[0])
                    if workers > 1 or cell[:3] not in {c[:3] for c in found}:
                        found[cell] = None
    return list(found)


def measure(cell: Cell, folder: Path, steps: int, flags: list[str]) -> dict:
    """Run a cell in the lab; returns its row, with `failure` in place of results if it failed."""
    lab = ["--nodes", str(cell.workers), "--rate", cell.rate, "--quiet"]
    more = [*flags, "--max_steps", str(steps)]
    script = BY_KEY[cell.task].script
    task = training_command(script, folder, cell.batch, more)
    done = subprocess.run(
        [sys.executable, "-m", "cluster.netlab", *lab, *task],
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
    )
    if done.returncode == 128 + signal.SIGINT:
        raise KeyboardInterrupt
    if done.returncode:
        failure = done.stderr.strip() or f"exit code {done.returncode}"
        return {**cell._asdict(), "failure": failure}
    (folder / "model.safetensors").unlink()  # a cell is measured, not kept
    run = load_run(folder)
    nodes = json.loads((folder / "netlab.json").read_text())["nodes"]
    config = json.loads((folder / "config.json").read_text())
    return {
        **cell._asdict(),
        "seconds": {phase: run.seconds(phase) for phase in ("total", *PHASES)},
        "gradient_bytes": run.facts["gradient_bytes"],
        "embedding_bytes": 4 * config["vocab_size"] * config["hidden_size"],
        "sent": [node["sent"] for node in nodes],
        "received": [node["received"] for node in nodes],
        "expected": [node["expected"] for node in nodes],
    }


def sweep_of(path: Path, settings: dict, resume: bool) -> dict:
    """The sweep that a file holds, without its failed cells, or a new one; raises UserError."""
    if not path.exists():
        return {"settings": settings, "machine": machine(), "cells": []}
    if not resume:
        raise UserError(f"{path} already exists: add --resume, or choose another --output_dir")
    sweep = json.loads(path.read_text())
    if sweep["settings"] != settings:
        raise UserError(
            f"{path} has other settings: {sweep['settings']}, and now {settings}; use the same, "
            "or choose another --output_dir"
        )
    sweep["cells"] = [cell for cell in sweep["cells"] if "failure" not in cell]
    return sweep


def run_sweep(args: argparse.Namespace, flags: list[str]) -> dict:
    """Measure every cell that is not there yet; returns the sweep as a dict."""
    path = args.output_dir / "sweep.json"
    settings = {"batch": args.batch, "steps": args.steps, "flags": flags}
    sweep = sweep_of(path, settings, args.resume)
    done = {Cell(*(cell[name] for name in Cell._fields)) for cell in sweep["cells"]}
    todo = [cell for cell in cells(args) if cell not in done]
    args.output_dir.mkdir(parents=True, exist_ok=True)
    with tqdm(total=len(todo), unit="cell") as bar:
        for cell in todo:
            bar.set_description(str(cell))
            row = measure(cell, args.output_dir / "cells" / cell.folder, args.steps, flags)
            if "failure" in row:
                bar.write(f"sweep: {cell} failed: {row['failure']}", file=sys.stderr)
            sweep["cells"].append(row)
            write_whole(path, json.dumps(sweep, indent=1) + "\n")
            bar.update()
    return sweep


def machine() -> dict[str, object]:
    """What the sweep ran on."""
    from common.record.facts import git_commit, processor  # imports torch, which takes seconds

    return {
        "processor": processor(),
        "cores": len(os.sched_getaffinity(0)),
        "git_commit": git_commit(KIT),
    }


def main(argv: list[str] | None = None) -> int:
    """Run the sweep, print its table, draw it; returns the exit code: 1 if a cell failed."""
    try:
        args, flags = parse(argv)
        if reason := missing():
            raise UserError(reason)
        sweep = run_sweep(args, flags)
        write_whole(args.output_dir / "sweep.md", scaling.cells_table(sweep) + "\n")
        print(scaling.cells_table(sweep))
        for figure in scaling.figures(sweep, args.output_dir):
            print(f"figure: {figure}")
    except UserError as error:
        print(f"sweep: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("sweep: stopped; run the same command with --resume to continue", file=sys.stderr)
        return 130
    return 1 if any("failure" in cell for cell in sweep["cells"]) else 0


if __name__ == "__main__":
    sys.exit(main())
