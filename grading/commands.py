"""How a submission's scripts are called: as the assignment says, or as a grading.yaml does."""

import shlex
from pathlib import Path

from common.errors import UserError
from grading import inputs

import yaml

COMMAND = """--model_type {model_type} --model_name_or_path {model} --task_name {task_name}
    --do_train --do_eval --data_dir {data_dir} --max_seq_length {max_seq_length}
    --per_gpu_train_batch_size {batch} --per_gpu_eval_batch_size {eval_batch}
    --learning_rate {learning_rate} --num_train_epochs {epochs} --max_grad_norm {max_grad_norm}
    --output_dir {output_dir} --overwrite_output_dir"""
DISTRIBUTED = """ --master_ip {master_ip} --master_port {master_port} --world_size {world_size}
    --local_rank {rank}"""
RATE = 2e-5


def commands_of(path, mapping=None):
    """Task -> its script and arguments, where a submission's are not the handout's.

    They are those of the file `mapping`, or else of the submission's own grading.yaml, if it has
    one. Raises UserError for a file that is not there, or is no mapping.
    """
    file = Path(mapping) if mapping else path / "grading.yaml"
    if mapping and not file.is_file():
        raise UserError(f"--mapping {mapping}: there is no such file")
    if not file.is_file() or file.is_symlink():
        return {}
    try:
        mapping = yaml.safe_load(file.read_text()[:65536]) or {}
        if not all(isinstance(one, dict) for one in mapping.values()):
            raise ValueError("each task needs `script:` and `arguments:`")
    except (OSError, ValueError, AttributeError, yaml.YAMLError) as error:
        raise UserError(f"{file.name}: is no mapping of tasks to commands ({error})") from None
    return mapping


def command_of(own, task, setting, shown, folder, rank, port):
    """A worker's script and arguments; UserError where there is no such script.

    `own` are the submission's words for this task, if it has any; `shown` is the folder with the
    model and the data, and `folder` the submission's copy.
    """
    script = str(own.get("script", f"{task.name}/run_glue.py"))
    path = (folder / script).resolve()
    if not path.is_relative_to(folder.resolve()) or not path.is_file():
        raise UserError(
            f"{script}: there is no such file in the submission; put it there, or say where "
            "it is in grading.yaml"
        )
    text = own.get("arguments", COMMAND + DISTRIBUTED * (task.workers > 1))
    values = {
        "model": shown / "model",
        "model_type": "bert",
        "task_name": "RTE",
        "data_dir": shown / setting.rows,
        "output_dir": folder / "output",
        "max_seq_length": inputs.LENGTH,
        "batch": task.batch,
        "eval_batch": inputs.EVAL_BATCH,
        "learning_rate": RATE,
        "epochs": setting.epochs,
        "max_grad_norm": setting.max_grad_norm,
        "master_ip": "127.0.0.1",
        "master_port": port,
        "world_size": task.workers,
        "rank": rank,
    }
    try:
        return [script, *(word.format(**values) for word in shlex.split(str(text)))]
    except (KeyError, IndexError, ValueError) as error:
        raise UserError(
            f"grading.yaml: {task.name}: arguments: {error}; the placeholders are "
            f"{', '.join(f'{{{name}}}' for name in values)}"
        ) from None
