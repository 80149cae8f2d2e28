"""The further tasks on this machine, each beside task 1, and a short pre-training: `make further`.

    python -m experiments.further [--tasks 5,zero1,gpipe] [--steps 8] [--output_dir runs/further]

All of them train the tiny BERT with four layers on the same batches of 64 of the sample data, on
four workers, so that their losses are task 1's. Further flags go to the tasks.
"""

import argparse
import subprocess
import sys
import time
from pathlib import Path

from cluster.launch import Place, Result, launch
from cluster.template import Template
from common.commands import program
from common.errors import UserError
from common.tasks import SCRIPTS, TASKS, Task
from experiments.command import KIT, choose_tasks, keys_of, prepare_corpus, training_command
from experiments.demo import FLAGS, TOTAL_BATCH, met_todo
from report import compare
from report.runs import load_run

WORKERS = 4
FEWER = {"tensor": 2, "task8": 2}  # tiny has two attention heads; two cores serve two workers
FURTHER = [task for task in SCRIPTS.values() if task.further and not task.extra]
OWN = {  # task -> its own flags
    "task5": "--batch_sizes 24,20,12,8",
    "uneven_ddp": "--batch_sizes 24,20,12,8",
    "gpipe": "--num_microbatches 8",
    "one_f_one_b": "--num_microbatches 8",
    "library": "--num_microbatches 8",
    "grid": "--num_microbatches 4 --pipeline 2 --data 2 --per_gpu_train_batch_size 32",
}
PRETRAINING = "--max_steps 300"  # some two minutes on two cores


def command_of(task: Task, folder: Path, steps: int, flags: list[str]) -> list[str]:
    """A task's script and flags; those of the command line come last and win."""
    data = ["--data_dir", str(KIT / "sample_data" / "RTE"), "--max_steps", str(steps)]
    common = FLAGS.replace("tiny", "tiny:4") + " --save_strategy no"
    batch = TOTAL_BATCH if task.divided or not task.distributed else TOTAL_BATCH // WORKERS
    command = training_command(task.script, folder, batch, [*common.split(), *data])
    if "--batch_sizes" in OWN.get(task.name, ""):  # in place of one batch for all
        at = command.index("--per_gpu_train_batch_size")
        del command[at : at + 2]
    return [*command, *OWN.get(task.name, "").split(), *flags]


def pretraining(folder: Path) -> list[str]:
    """The pre-training's script and flags, once its corpus is made; raises CalledProcessError."""
    data = ["--data_dir", str(prepare_corpus(folder))]
    command = [str(KIT / "task8" / "pretrain.py"), *data, *PRETRAINING.split()]
    return [*command, "--output_dir", str(folder / "task8"), "--overwrite_output_dir"]


def parse(argv: list[str] | None) -> tuple[argparse.Namespace, list[str]]:
    """The command's own flags, and the rest, which are the tasks'; raises UserError."""
    parser = argparse.ArgumentParser(prog=program(), description=__doc__, allow_abbrev=False)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--tasks", default=keys_of(FURTHER), help="default: all")
    parser.add_argument("--steps", type=int, default=8, help="of each task (default: 8)")
    parser.add_argument("--output_dir", type=Path, default=KIT / "runs" / "further")
    args, flags = parser.parse_known_args(argv)
    if args.steps < 2:
        raise UserError(f"--steps {args.steps}: give 2 or more, because the first is discarded")
    args.tasks = choose_tasks(args.tasks, FURTHER)
    return args, flags


def run_task(task: Task, args: argparse.Namespace, flags: list[str], template) -> Result:
    """Run a task on its workers, which are forked from the template."""
    workers = FEWER.get(task.name, WORKERS) if task.distributed else 1
    print(f"further: {task.name} with {workers} worker(s)", flush=True)
    if task.pretrains:
        command = pretraining(args.output_dir)
    else:
        command = command_of(task, args.output_dir / task.name, args.steps, flags)
    return launch(command, workers, place=Place(template=template))


def main(argv: list[str] | None = None) -> int:
    """Run the tasks and print the comparison; returns the exit code."""
    start, runs, unwritten = time.monotonic(), [], []
    try:
        args, flags = parse(argv)
        with Template() as template:
            for task in [TASKS["task1"], *args.tasks]:
                result = run_task(task, args, flags, template)
                if result.code and not met_todo(result):
                    return result.code
                if result.code:
                    unwritten.append(task.name)
                elif not task.pretrains:
                    runs.append(load_run(args.output_dir / task.name))
    except UserError as error:
        print(f"further: {error}", file=sys.stderr)
        return 2
    except subprocess.CalledProcessError as error:
        return error.returncode
    except KeyboardInterrupt:
        return 130
    if runs:
        print(compare.side_by_side(runs))
    if unwritten:
        print(f"further: {', '.join(unwritten)}: not finished; the lines above say what to write")
    print(f"further: done in {time.monotonic() - start:.0f} s")
    return 1 if unwritten else 0


if __name__ == "__main__":
    sys.exit(main())
