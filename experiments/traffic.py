"""Task 4's comparison: traffic by total batch size, gradient dtype and method.

    python -m experiments.traffic --output_dir runs/sweep --data_dir sample_data/RTE \\
      --task_name RTE --model_type bert --model_name_or_path tiny

Every flag that is not the sweep's own goes to task4/run_glue.py.
"""

import argparse
import itertools
import json
import sys
from pathlib import Path

from cluster.launch import Place, launch
from cluster.template import Template
from common.cli import comma_separated
from common.commands import program
from common.errors import UserError
from common.files import write_whole
from common.record.format import difference
from common.tables import markdown_table
from common.tasks import TABLE, TASKS
from experiments.command import training_command
from report.figures import steps_of_epoch
from report.runs import Run, load_run

TASK = next(task for task in TABLE if task.profiles)


def parse(argv: list[str] | None) -> tuple[argparse.Namespace, list[str]]:
    """The sweep's own flags, and the rest, which are task 4's; raises UserError."""
    usual = TASKS[TASK.strategy].key
    parser = argparse.ArgumentParser(
        prog=program(),
        description="Compare traffic by total batch size, gradient dtype and method.",
        allow_abbrev=False,
    )
    parser.add_argument("--workers", type=int, default=4, help="on this machine (default: 4)")
    parser.add_argument(
        "--batches", type=comma_separated, default="64,32,16", help="total batch sizes"
    )
    parser.add_argument(
        "--dtypes", type=comma_separated, default="float32,bfloat16", help="of gradients"
    )
    parser.add_argument(
        "--methods", type=comma_separated, default=usual, help="default: %(default)s"
    )
    parser.add_argument("--output_dir", type=Path, required=True, help="folder for all runs")
    args, flags = parser.parse_known_args(argv)
    if args.workers < 1:
        raise UserError(f"--workers {args.workers}: must be 1 or more")
    for batch in args.batches:
        if not batch.isdigit() or int(batch) < 1 or int(batch) % args.workers:
            raise UserError(f"--batches {batch}: must divide evenly among {args.workers} workers")
    return args, flags


def main(argv: list[str] | None = None) -> int:
    """Run every combination, print the table, and return the exit code: 1 if a run failed."""
    rows, failed = [], False
    try:
        args, flags = parse(argv)
        cells = list(itertools.product(args.methods, args.batches, args.dtypes))
        with Template() as template:
            for number, (method, batch, dtype) in enumerate(cells, 1):
                name = f"{method}-{batch}-{dtype}"
                print(f"sweep: {number} of {len(cells)}: {name}", flush=True)
                more = ["--num_train_epochs", "1", *flags]
                more += ["--method", method, "--gradient_dtype", dtype]
                folder, worker_batch = args.output_dir / name, int(batch) // args.workers
                command = training_command(TASK.script, folder, worker_batch, more)
                result = launch(command, args.workers, quiet=True, place=Place(template=template))
                if result.code:
                    failed = True
                    print(f"{name} failed: {result.summary()}", file=sys.stderr)
                else:
                    rows.append(row(load_run(folder), int(batch)))
    except UserError as error:
        print(f"sweep: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    text = rows_table(rows)
    print(text)
    if rows:
        write_whole(args.output_dir / "sweep.json", json.dumps(rows, indent=1) + "\n")
        write_whole(args.output_dir / "sweep.md", text + "\n")
    return 1 if failed else 0


def row(run: Run, batch: int) -> dict[str, object]:
    """One run's row of the table: bytes are of an iteration's mean and of the first epoch.

    An epoch that ended early is extrapolated from its iterations.
    """
    mean, epoch = run.traffic["per_iteration"], run.traffic["epochs"][0]
    steps, whole = sum(i["epoch"] == 1 for i in run.traffic["iterations"]), steps_of_epoch(run)
    return {
        "method": run.traffic["method"],
        "total batch": batch,
        "gradients": run.traffic["dtype"],
        "iterations": steps,
        "of an epoch's": whole,
        "payload, MB/iteration": round(mean["payload"] / 1e6, 3),
        "rank 0 sends, MB/iteration": round(mean["sent_bytes"] / 1e6, 3),
        "expected, MB/iteration": round(mean["expected"] / 1e6, 3),
        "measured, MB/iteration": round(mean["measured"] / 1e6, 3),
        "difference, %": round(difference(mean) or 0.0, 2),
        "measured, MB/epoch": round(epoch["measured"] * whole / steps / 1e6, 1),
        "ms/iteration": round(1000 * run.seconds("total"), 1),
    }


def rows_table(rows: list[dict[str, object]]) -> str:
    """The rows in Markdown."""
    if not rows:
        return "no run succeeded"
    table = markdown_table(list(rows[0]), (row.values() for row in rows))
    if any(row["iterations"] != row["of an epoch's"] for row in rows):
        table += "\n\nMB/epoch: extrapolated where a run did not do all iterations of an epoch."
    return table


if __name__ == "__main__":
    sys.exit(main())
