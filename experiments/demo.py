"""The main job: every task on this machine, on sample data and the tiny BERT, side by side.

    python -m experiments.demo [--workers 4] [--tasks 1,2a] [--output_dir runs/demo]

Further flags go to the tasks.
"""

import argparse
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from cluster.launch import Place, Result, launch
from cluster.template import Template
from common.commands import program
from common.errors import UserError
from common.tasks import ASSIGNED, TABLE, Task
from experiments.command import KIT, choose_tasks, keys_of, training_command, workers_of
from report import build, compare
from report.runs import Run, load_run

TOTAL_BATCH = 64
FLAGS = (
    "--model_name_or_path tiny --task_name RTE --do_eval --max_seq_length 128 "
    "--per_gpu_eval_batch_size 64 --learning_rate 5e-4 --dropout 0"
)
WHOLE = "--max_steps 40"  # the iterations that the assignment times; an epoch has 39
SHORT = "--max_steps 6"  # enough to count bytes


@dataclass(frozen=True)
class Job:
    """A run of the demo; `name` is its folder's."""

    name: str
    task: Task
    workers: int
    worker_batch: int
    flags: str = ""


def jobs(tasks: Iterable[Task], workers: int) -> Iterator[Job]:
    """Every run of the demo: each task as it is, then its short runs."""
    for task in tasks:
        count = workers_of(task, workers)
        yield Job(task.name, task, count, TOTAL_BATCH // count, WHOLE)
        for short in task.demo:
            batch = max(1, (short.total_batch or TOTAL_BATCH) // count)
            name = f"{task.name}-{short.suffix}"
            yield Job(name, task, count, batch, f"{short.flags} {SHORT}")


def parse(argv: list[str] | None) -> tuple[argparse.Namespace, list[str]]:
    """The demo's own flags, and the rest, which are the tasks'; raises UserError."""
    parser = argparse.ArgumentParser(prog=program(), description=__doc__, allow_abbrev=False)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--workers", type=int, default=4, help="of the distributed tasks")
    parser.add_argument("--tasks", default=keys_of(ASSIGNED), help="default: %(default)s")
    parser.add_argument("--output_dir", type=Path, default=KIT / "runs" / "demo")
    args, flags = parser.parse_known_args(argv)
    if args.workers < 1 or TOTAL_BATCH % args.workers:
        raise UserError(f"--workers {args.workers}: must divide {TOTAL_BATCH}")
    args.tasks = choose_tasks(args.tasks, TABLE)
    return args, flags


def main(argv: list[str] | None = None) -> int:
    """Run the tasks and print the comparison; returns the exit code."""
    start, runs, unwritten = time.monotonic(), {}, []
    try:
        args, flags = parse(argv)
        with Template() as template:
            for job in jobs(args.tasks, args.workers):
                print(f"demo: {job.name} with {job.workers} worker(s)", flush=True)
                folder, place = args.output_dir / job.name, Place(template=template)
                result = launch(command_of(job, folder, flags), job.workers, place=place)
                if result.code and not met_todo(result):
                    return result.code
                if result.code:
                    unwritten.append(job.name)
                else:
                    runs[job.name] = load_run(folder)
    except UserError as error:
        print(f"demo: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    if runs:
        report(runs, args.output_dir)
    if unwritten:
        print(f"demo: {', '.join(unwritten)}: not finished yet; the lines above say what to write")
    print(f"demo: done in {time.monotonic() - start:.0f} s")
    return 1 if unwritten else 0


def command_of(job: Job, folder: Path, flags: list[str]) -> list[str]:
    """A job's script and flags; those of the command line come last and win."""
    data = ["--data_dir", str(KIT / "sample_data" / "RTE")]
    more = [*FLAGS.split(), *data, *job.flags.split(), *flags]
    return training_command(job.task.script, folder, job.worker_batch, more)


def met_todo(result: Result) -> bool:
    """Whether a run has ended at a part that a student has still to write."""
    return any("TODO(" in line for worker in result.workers for line in worker.stderr)


def report(runs: dict[str, Run], folder: Path) -> None:
    """Print and draw the runs side by side, with every method's traffic; build a report."""
    whole = [run for name, run in runs.items() if "-" not in name]
    methods = [run for run in runs.values() if run.traffic]
    print(compare.side_by_side(whole), compare.traffic_table(methods), sep="\n")
    compare.picture(whole, folder / "side_by_side.png", methods)
    print(f"picture: {folder / 'side_by_side.png'}")
    example = KIT / "report" / "example" / "answers.md"
    if not example.exists():  # it answers the tasks' questions: no student has it
        return
    answers = build.read_answers(example)
    student = build.Student("netid", "First", "Last")
    options = build.Options(images=example.parent)
    build.build(list(runs.values()), answers, student, folder / "netid_First_Last.pdf", options)
    print(f"example of a report: {folder / 'netid_First_Last.pdf'}")


if __name__ == "__main__":
    sys.exit(main())
