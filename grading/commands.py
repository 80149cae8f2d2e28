"""How a submission's scripts are called: as in the assignment, or as in its grading.yaml."""

import shlex
from pathlib import Path

from common.errors import UserError
from common.tasks import Task
from grading import inputs

import yaml

COMMAND = """--model_type {model_type} --model_name_or_path {model} --task_name {task_name}
    --do_train --do_eval --data_dir {data_dir} --max_seq_length {max_seq_length}
    --per_gpu_train_batch_size {batch} --per_gpu_eval_batch_size {eval_batch}
    --learning_rate {learning_rate} --num_train_epochs {epochs} --max_grad_norm {max_grad_norm}
    --output_dir {output_dir} --overwrite_output_dir"""
DISTRIBUTED = """ --master_ip {master_ip} --master_port {master_port} --world_size {world_size}
    --local_rank {rank}"""
LARGEST = 65536  # characters of a grading.yaml that are read


def read_mapping(submission: Path, mapping: Path | None = None) -> dict[str, dict]:
    """Task -> its script and arguments, where a submission's are not the handout's.

    They are those of the file `mapping`, or else of the submission's own grading.yaml, if it has
    one. Raises UserError for a file that does not exist, or is not a mapping.
    """
    file = Path(mapping) if mapping else submission / "grading.yaml"
    if mapping and not file.is_file():
        raise UserError(f"--mapping {mapping}: there is no such file")
    if not file.is_file() or file.is_symlink():
        return {}
    try:
        found = yaml.safe_load(file.read_text()[:LARGEST]) or {}
        if not all(isinstance(one, dict) for one in found.values()):
            raise ValueError("each task needs `script:` and `arguments:`")
    except (OSError, ValueError, AttributeError, yaml.YAMLError) as error:
        raise UserError(
            f"{file.name} is not a valid mapping of tasks to commands: {error}"
        ) from None
    return found


def placeholders(setting: inputs.Setting, inputs_folder: Path, folder: Path) -> dict[str, object]:
    """The values for a command's placeholders that all workers of a run share.

    `inputs_folder` holds the model and the data, `folder` the submission's copy.
    """
    return {
        "model": inputs_folder / "model",
        "model_type": "bert",
        "task_name": "RTE",
        "data_dir": inputs_folder / setting.rows,
        "output_dir": folder / "output",
        "max_seq_length": inputs.LENGTH,
        "eval_batch": inputs.EVAL_BATCH,
        "learning_rate": inputs.LEARNING_RATE,
        "epochs": setting.epochs,
        "max_grad_norm": setting.max_grad_norm,
        "master_ip": "127.0.0.1",
    }


def command_of(own: dict, task: Task, values: dict[str, object], folder: Path) -> list[str]:
    """A worker's script and arguments; `own` is the submission's mapping for this task, or {}.

    Raises UserError if the script does not exist, or the arguments have an unknown placeholder.
    """
    script = str(own.get("script", task.script))
    path = (folder / script).resolve()
    if not path.is_relative_to(folder.resolve()) or not path.is_file():
        raise UserError(
            f"{script}: the submission has no such file; add it, or name the script in grading.yaml"
        )
    text = own.get("arguments", COMMAND + (DISTRIBUTED if task.distributed else ""))
    try:
        return [script, *(word.format(**values) for word in shlex.split(str(text)))]
    except (KeyError, IndexError, ValueError) as error:
        raise UserError(
            f"grading.yaml: {task.name}: arguments: {error}; the placeholders are "
            f"{', '.join(f'{{{name}}}' for name in values)}"
        ) from None
