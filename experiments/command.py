"""The command line of a task's run, built in one place, and the flags that choose tasks."""

import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from common.errors import UserError
from common.tasks import Task

KIT = Path(__file__).resolve().parent.parent


def training_command(
    script: str, output_dir: Path, worker_batch: int, flags: Iterable[str] = ()
) -> list[str]:
    """The path of one of the kit's scripts and its flags, for a run that trains.

    `worker_batch` is the batch of one worker; `flags` are any others of the tasks. The run replaces
    an earlier one in `output_dir`.
    """
    command = [str(KIT / script), "--do_train", "--model_type", "bert", *flags]
    command += ["--per_gpu_train_batch_size", str(worker_batch)]
    return [*command, "--output_dir", str(output_dir), "--overwrite_output_dir"]


def prepare_corpus(folder: Path) -> Path:
    """The bundled corpus, made in a folder if it is not there; raises CalledProcessError."""
    corpus = folder / "corpus"
    script = str(KIT / "task8" / "prepare.py")
    subprocess.run([sys.executable, script, "--output_dir", str(corpus)], check=True)
    return corpus


def workers_of(task: Task, workers: int) -> int:
    """How many workers a task has where the distributed ones have `workers`."""
    return workers if task.distributed else 1


def keys_of(tasks: Iterable[Task]) -> str:
    """The tasks as a flag's value: 1,2a,2b."""
    return ",".join(task.key for task in tasks)


def choose_tasks(keys: str, tasks: Sequence[Task]) -> list[Task]:
    """The tasks that a flag's value such as 2a,2b names; raises UserError for others."""
    chosen = [key.strip() for key in keys.split(",") if key.strip()]
    unknown = sorted(set(chosen) - {task.key for task in tasks})
    if unknown or not chosen:
        raise UserError(f"--tasks {','.join(unknown)}: choose from {keys_of(tasks)}")
    return [task for task in tasks if task.key in chosen]
