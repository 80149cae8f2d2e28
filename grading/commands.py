"""How a submission's scripts are called: as in the assignment, or as in a mapping."""

import re
import shlex
from collections.abc import Mapping
from pathlib import Path

from common.errors import UserError
from common.tasks import Task
from grading import inputs

COMMAND = """--model_type {model_type} --model_name_or_path {model} --task_name {task_name}
    --do_train --do_eval --data_dir {data_dir} --max_seq_length {max_seq_length}
    --per_gpu_train_batch_size {batch} --per_gpu_eval_batch_size {eval_batch}
    --learning_rate {learning_rate} --num_train_epochs {epochs} --max_grad_norm {max_grad_norm}
    --output_dir {output_dir} --overwrite_output_dir"""
PRETRAINING = """--model_name_or_path {model} --data_dir {data_dir} --deepspeed_config {config}
    --max_seq_length {max_seq_length} --max_steps {steps} --per_gpu_train_batch_size {batch}
    --gradient_accumulation_steps {accumulated} --max_grad_norm {max_grad_norm}
    --dropout {dropout} --timeout 60 --no_cuda --output_dir {output_dir} --overwrite_output_dir"""
BATCH, PARTS = "--per_gpu_train_batch_size {batch}", "--batch_sizes {batch_sizes}"
DISTRIBUTED = """ --master_ip {master_ip} --master_port {master_port} --world_size {world_size}
    --local_rank {rank}"""
MICROBATCHES = " --num_microbatches {microbatches}"
GRID = " --pipeline {divided_over} --data {replicas}"
VARIABLE = re.compile(r"[A-Z][A-Z0-9_]{0,63}")
PLACEHOLDER = re.compile(r"\{(\w[^{}]*)\}")


def placeholders(setting: inputs.Setting, model: Path, output: Path) -> dict[str, object]:
    """The values for a command's placeholders that all workers of a run share.

    `model` and `output` are folders.
    """
    return {
        "model": model,
        "model_type": "bert",
        "task_name": "RTE",
        "output_dir": f"{output}/",
        "max_seq_length": inputs.LENGTH,
        "eval_batch": inputs.EVAL_BATCH,
        "learning_rate": inputs.LEARNING_RATE,
        "epochs": setting.epochs,
        "max_grad_norm": setting.max_grad_norm,
        "master_ip": "127.0.0.1",
    }


def command_of(own: Mapping, task: Task, values: Mapping, folder: Path) -> list[str]:
    """A worker's script and arguments; `own` is the task's entry in a mapping, or {}.

    Raises UserError if the script does not exist, or the arguments have an unknown placeholder.
    """
    script = own.get("script", task.script)
    if not is_inside(folder, script):
        raise UserError(
            f"{script}: the submission has no such file; add it, or name the script in grading.yaml"
        )
    text = own.get("arguments", usual_arguments(task))
    try:
        return [script, *(fill_in(word, values) for word in shlex.split(text))]
    except ValueError as error:
        raise UserError(f"the mapping of {task.name}: arguments: {error}") from None


def usual_arguments(task: Task) -> str:
    """The arguments that a task's script takes in the assignment, or in its README."""
    text = COMMAND.replace(BATCH, PARTS) if task.weighted else COMMAND
    text = PRETRAINING if task.pretrains else text
    text += DISTRIBUTED * task.distributed
    if task.schedule and task.schedule != "naive":
        text += MICROBATCHES
    return text + GRID * (task.divided and {"send", "all_reduce"} <= set(task.collectives))


def environment_of(own: Mapping, task: Task, values: Mapping) -> dict[str, str]:
    """A worker's own environment variables; UserError if they are not NAME=VALUE pairs."""
    found = {}
    try:
        for word in shlex.split(own.get("environment", "")):
            name, equals, value = word.partition("=")
            if not equals or not VARIABLE.fullmatch(name):
                raise ValueError(f"write {word!r} as NAME=VALUE, such as RANK={{rank}}")
            found[name] = fill_in(value, values)
    except ValueError as error:
        raise UserError(f"the mapping of {task.name}: environment: {error}") from None
    return found


def is_inside(folder: Path, script: str) -> bool:
    """Whether a script is a file of the submission in the folder."""
    try:
        path = (folder / script).resolve()
        return path.is_relative_to(folder.resolve()) and path.is_file()
    except (OSError, ValueError):  # too long, or characters that no path has
        return False


def fill_in(word: str, values: Mapping) -> str:
    """A word of a command with its placeholders replaced; ValueError for one that is unknown."""
    unknown = [name for name in PLACEHOLDER.findall(word) if name not in values]
    if unknown:
        known = ", ".join(f"{{{name}}}" for name in values)
        raise ValueError(f"there is no placeholder {{{unknown[0]}}}; there are {known}")
    return PLACEHOLDER.sub(lambda found: str(values[found[1]]), word)
