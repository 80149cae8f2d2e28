"""The tasks against each other on this machine: interleaved runs, warm-up dropped, ratios.

    python -m staff.timing.rounds --output_dir runs/rounds --data_dir DIR --task_name RTE \\
      --model_name_or_path tiny [--tasks 1,2a,2b,3] [--rounds 3] [--workers 4]

Runs A B C A B C, so that whatever else the machine does affects all alike, and compares them as
`python -m staff timings` does. Further flags go to the tasks. Task 1 has one worker and the whole
batch.
"""

import argparse
import sys
from pathlib import Path

from cluster.launch import launch
from common.commands import program
from common.errors import UserError
from common.tasks import COMPARED, VARIANTS
from experiments.command import choose_tasks, keys_of, training_command, workers_of
from staff.timing import timings


def parse(argv: list[str] | None) -> tuple[argparse.Namespace, list[str]]:
    """The bench's own flags, and the rest, which are the tasks'; raises UserError."""
    parser = argparse.ArgumentParser(prog=program(), description=__doc__, allow_abbrev=False)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--tasks", default=keys_of(COMPARED), help="default: %(default)s")
    parser.add_argument("--rounds", type=int, default=3, help="default: 3")
    parser.add_argument("--workers", type=int, default=4, help="of distributed tasks (default: 4)")
    parser.add_argument("--batch", type=int, default=64, help="total batch (default: 64)")
    parser.add_argument("--output_dir", type=Path, required=True, help="folder for all runs")
    args, flags = parser.parse_known_args(argv)
    args.tasks = choose_tasks(args.tasks, (*COMPARED, *VARIANTS))
    if args.rounds < 1 or args.workers < 1 or args.batch % args.workers:
        raise UserError("--rounds and --workers: 1 or more; --batch: divisible by --workers")
    if list(args.output_dir.glob("round*")):
        raise UserError(
            f"--output_dir {args.output_dir}: already contains rounds; choose another folder"
        )
    return args, flags


def main(argv: list[str] | None = None) -> int:
    """Run the rounds and compare them; returns the exit code."""
    try:
        args, flags = parse(argv)
        for number in range(1, args.rounds + 1):
            for task in args.tasks:
                print(f"bench: round {number} of {args.rounds}, task {task.key}", flush=True)
                workers = workers_of(task, args.workers)
                folder = args.output_dir / f"round{number}" / task.name
                more = ["--max_steps", "40", "--time_all_reduce", *flags]
                command = training_command(task.script, folder, args.batch // workers, more)
                result = launch(command, workers, quiet=True)
                if result.code:
                    raise UserError(f"task {task.key} failed: {result.summary()}")
    except UserError as error:
        print(f"staff.timing.rounds: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    folder = str(args.output_dir)
    return timings.main([folder, "--output_dir", folder])


if __name__ == "__main__":
    sys.exit(main())
