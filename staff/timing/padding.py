"""The losses of every task with padding left out, against the padded computation's.

    python -m staff.timing.padding --data_dir sample_data/RTE [--model_name_or_path tiny]
      [--steps 40] [--workers 2] [--batch 64] [--tasks 1,2a,2b,3,4]

Prints the largest difference of the global loss over all steps, of each task, and the ratio of the
iterations' times. Further flags go to the tasks.
"""

import argparse
import sys
from pathlib import Path

from cluster.launch import Place, launch
from cluster.template import Template
from common.commands import program
from common.errors import UserError
from common.tables import markdown_table
from common.tasks import SCRIPTS, Task
from experiments.command import KIT, choose_tasks, keys_of, training_command, workers_of
from report.runs import Run, largest_gap, load_run

FLAGS = "--task_name RTE --max_seq_length 128 --dropout 0 --save_strategy no"
ALL = tuple(task for task in SCRIPTS.values() if not task.pretrains and not task.extra)


def parse(argv: list[str] | None) -> tuple[argparse.Namespace, list[str]]:
    """The command's own flags, and the rest, which are the tasks'; raises UserError."""
    parser = argparse.ArgumentParser(prog=program(), description=__doc__, allow_abbrev=False)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--data_dir", required=True, help="folder of the RTE files")
    parser.add_argument("--model_name_or_path", default="tiny", help="default: tiny")
    parser.add_argument("--tasks", default=keys_of(ALL), help="default: %(default)s")
    parser.add_argument("--steps", type=int, default=40, help="default: 40")
    parser.add_argument("--workers", type=int, default=2, help="of distributed tasks (default: 2)")
    parser.add_argument("--batch", type=int, default=64, help="total batch (default: 64)")
    parser.add_argument("--output_dir", type=Path, default=KIT / "runs" / "padding")
    args, flags = parser.parse_known_args(argv)
    args.tasks = choose_tasks(args.tasks, ALL)
    return args, flags


def trained(task: Task, args: argparse.Namespace, flags: list[str], template: Template) -> Run:
    """A run of a task; raises UserError if it fails."""
    workers = workers_of(task, args.workers)
    way = "padded" if "--padded" in flags else "unpadded"
    folder = args.output_dir / f"{task.key}-{way}"
    more = [*FLAGS.split(), "--data_dir", args.data_dir, "--max_steps", str(args.steps)]
    more += ["--model_name_or_path", args.model_name_or_path, *flags]
    command = training_command(task.script, folder, args.batch // workers, more)
    result = launch(command, workers, quiet=True, place=Place(template=template))
    if result.code:
        raise UserError(f"task {task.title} failed: {result.summary()}")
    return load_run(folder)


def main(argv: list[str] | None = None) -> int:
    """Run every task in both ways and print the table; returns the exit code."""
    rows = []
    try:
        args, flags = parse(argv)
        with Template() as template:
            for task in args.tasks:
                print(f"padding: task {task.key}", flush=True)
                padded = trained(task, args, ["--padded", *flags], template)
                ours = trained(task, args, flags, template)
                gap = largest_gap(ours.losses, padded.losses)
                ratio = ours.seconds("total") / padded.seconds("total")
                rows.append((task.title, str(len(ours.losses)), f"{gap:.1e}", f"{ratio:.2f}"))
    except UserError as error:
        print(f"staff.timing.padding: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    heads = ("task", "steps", "max abs. difference", "s per iteration / padded")
    print(markdown_table(heads, rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
