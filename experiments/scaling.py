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
import subprocess
import sys
from pathlib import Path

from cluster.lab_network import missing
from common.cli import words
from common.errors import UserError
from common.files import write_whole
from common.record.facts import git_commit, processor
from common.units import bits_per_second
from report import scaling
from report.runs import load_run

from tqdm import tqdm

KIT = Path(__file__).resolve().parent.parent
TASKS = {"2a": "task2a", "2b": "task2b", "3": "task3"}


def parse(argv):
    """The sweep's own flags, and the rest, which are the tasks'; raises UserError."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--tasks", type=words, default="2a,2b,3", help="default: 2a,2b,3")
    parser.add_argument("--workers", type=words, default="1,2,4", help="default: 1,2,4")
    parser.add_argument("--rates", type=words, default="100mbit,1gbit,10gbit", help="of each link")
    parser.add_argument("--batch", type=int, default=64, help="total batch (default: 64)")
    parser.add_argument(
        "--steps", type=int, default=12, help="of each cell; the first is discarded"
    )
    parser.add_argument("--resume", action="store_true", help="keep the cells that are done")
    parser.add_argument("--output_dir", type=Path, required=True, help="folder for all of it")
    args, flags = parser.parse_known_args(argv)
    if unknown := set(args.tasks) - set(TASKS):
        raise UserError(f"--tasks {','.join(sorted(unknown))}: give some of 2a, 2b, 3")
    try:
        args.workers = sorted({int(n) for n in args.workers})
        if not args.workers or args.workers[0] < 1 or any(args.batch % n for n in args.workers):
            raise ValueError
    except ValueError:
        raise UserError(
            f"--workers {args.workers}: whole numbers from 1 that divide --batch {args.batch}"
        ) from None
    for rate in args.rates:
        bits_per_second(rate)
    if args.steps < 3:
        raise UserError(f"--steps {args.steps}: give 3 or more, as the first is discarded")
    return args, flags


def cells(args):
    """Every (task, workers, batch of one worker, rate), each once, the quick ones first."""
    most = args.workers[-1]
    found = {}
    for rate in sorted(args.rates, key=bits_per_second, reverse=True):
        for workers in args.workers:
            for batch in (args.batch // workers, args.batch // most):
                for task in args.tasks if workers > 1 else ["1"]:
                    cell = (task, workers, batch, rate if workers > 1 else args.rates[0])
                    if workers > 1 or cell[:3] not in {c[:3] for c in found}:
                        found[cell] = None
    return list(found)


def measure(cell, folder, args, flags):
    """Run a cell in the lab; returns its row, with `failure` in place of results if it failed."""
    task, workers, batch, rate = cell
    row = {"task": task, "workers": workers, "batch": batch, "rate": rate}
    command = [sys.executable, "-m", "cluster.netlab", "--nodes", str(workers), "--rate", rate]
    command += ["--quiet", str(KIT / TASKS.get(task, "task1") / "run_glue.py"), "--do_train"]
    command += ["--model_type", "bert", *flags, "--max_steps", str(args.steps)]
    command += ["--per_gpu_train_batch_size", str(batch), "--output_dir", str(folder)]
    done = subprocess.run(
        [*command, "--overwrite_output_dir"],
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
    )
    if done.returncode == 128 + 2:
        raise KeyboardInterrupt
    if done.returncode:
        return {**row, "failure": done.stderr.strip() or f"exit code {done.returncode}"}
    (folder / "model.safetensors").unlink()  # a cell is measured, not kept
    run = load_run(folder)
    lab = json.loads((folder / "netlab.json").read_text())
    config = json.loads((folder / "config.json").read_text())
    phases = ("total", "data", "forward", "backward", "sync", "update")
    return {
        **row,
        "seconds": {phase: run.seconds(phase) for phase in phases},
        "gradient_bytes": run.facts["gradient_bytes"],
        "embedding_bytes": 4 * config["vocab_size"] * config["hidden_size"],
        "sent": [node["sent"] for node in lab["nodes"]],
        "received": [node["received"] for node in lab["nodes"]],
        "expected": [node["expected"] for node in lab["nodes"]],
    }


def run(args, flags):
    """Measure every cell that is not there yet; returns the sweep as a dict."""
    settings = {"batch": args.batch, "steps": args.steps, "flags": flags}
    path = args.output_dir / "sweep.json"
    sweep = {"settings": settings, "machine": machine(), "cells": []}
    if path.exists():
        if not args.resume:
            raise UserError(f"{path} is there already: give --resume, or another --output_dir")
        sweep = json.loads(path.read_text())
        if sweep["settings"] != settings:
            raise UserError(
                f"{path} has other settings: {sweep['settings']}, and now {settings}; give the "
                "same, or another --output_dir"
            )
    key = ("task", "workers", "batch", "rate")
    sweep["cells"] = [cell for cell in sweep["cells"] if "failure" not in cell]
    done = {tuple(cell[name] for name in key) for cell in sweep["cells"]}
    todo = [cell for cell in cells(args) if cell not in done]
    args.output_dir.mkdir(parents=True, exist_ok=True)
    with tqdm(total=len(todo), unit="cell") as bar:
        for cell in todo:
            name = "task{}, {} x {}, {}".format(*cell)
            bar.set_description(name)
            row = measure(
                cell, args.output_dir / "cells" / "{}-{}x{}-{}".format(*cell), args, flags
            )
            if "failure" in row:
                bar.write(f"sweep: {name} failed: {row['failure']}", file=sys.stderr)
            sweep["cells"].append(row)
            write_whole(path, json.dumps(sweep, indent=1) + "\n")
            bar.update()
    return sweep


def machine():
    """What the sweep ran on."""
    return {
        "processor": processor(),
        "cores": len(os.sched_getaffinity(0)),
        "git_commit": git_commit(KIT),
    }


def main(argv=None):
    """Run the sweep, print its table, draw it; returns the exit code: 1 if a cell failed."""
    try:
        args, flags = parse(argv)
        if reason := missing():
            raise UserError(reason)
        sweep = run(args, flags)
        write_whole(args.output_dir / "sweep.md", scaling.table(sweep) + "\n")
        print(scaling.table(sweep))
        for figure in scaling.figures(sweep, args.output_dir):
            print(f"figure: {figure}")
    except UserError as error:
        print(f"sweep: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("sweep: stopped; the same command with --resume goes on", file=sys.stderr)
        return 130
    return 1 if any("failure" in cell for cell in sweep["cells"]) else 0


if __name__ == "__main__":
    sys.exit(main())
