"""How a submission's scripts are called: as in the assignment, or as in its grading.yaml."""

import re
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
LARGEST = 65536  # bytes of a grading.yaml
LONGEST = 4096  # characters of a script's path, or of a task's arguments
DEEPEST = 4  # levels of nesting in a grading.yaml
PLACEHOLDER = re.compile(r"\{(\w[^{}]*)\}")


class Loader(yaml.BaseLoader):
    """Reads YAML of few levels without aliases, every scalar as text, whatever its tag."""

    def __init__(self, stream):
        super().__init__(stream)
        self.depth = 0

    def compose_node(self, parent, index):
        """One node and those inside it; YAMLError for an alias, or for too many levels."""
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError("aliases (*name) are not allowed; write the text out")
        self.depth += 1
        if self.depth > DEEPEST:
            raise yaml.YAMLError(f"more than {DEEPEST} levels of nesting")
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node


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
        found = parse(file)
    except (OSError, ValueError, AttributeError, yaml.YAMLError) as error:
        raise UserError(
            f"{file.name} is not a valid mapping of tasks to commands: {error}"
        ) from None
    return found


def parse(file: Path) -> dict[str, dict[str, str]]:
    """The mapping in a file; ValueError, AttributeError or YAMLError if it is not one."""
    with file.open("rb") as opened:
        text = opened.read(LARGEST + 1)
    if len(text) > LARGEST:
        raise ValueError(f"it is larger than {LARGEST:,} bytes")
    found = yaml.load(text.decode(), Loader) or {}
    for one in found.values():
        if not isinstance(one, dict) or not all(isinstance(text, str) for text in one.values()):
            raise ValueError("each task needs `script:` and `arguments:`")
        if any(len(text) > LONGEST for text in one.values()):
            raise ValueError(f"a text of more than {LONGEST:,} characters")
    return found


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


def command_of(own: dict, task: Task, values: dict[str, object], folder: Path) -> list[str]:
    """A worker's script and arguments; `own` is the submission's mapping for this task, or {}.

    Raises UserError if the script does not exist, or the arguments have an unknown placeholder.
    """
    script = own.get("script", task.script)
    if not is_inside(folder, script):
        raise UserError(
            f"{script}: the submission has no such file; add it, or name the script in grading.yaml"
        )
    text = own.get("arguments", COMMAND + (DISTRIBUTED if task.distributed else ""))
    try:
        return [script, *(fill_in(word, values) for word in shlex.split(text))]
    except ValueError as error:
        raise UserError(f"grading.yaml: {task.name}: arguments: {error}") from None


def is_inside(folder: Path, script: str) -> bool:
    """Whether a script is a file of the submission in the folder."""
    try:
        path = (folder / script).resolve()
        return path.is_relative_to(folder.resolve()) and path.is_file()
    except (OSError, ValueError):  # too long, or characters that no path has
        return False


def fill_in(word: str, values: dict[str, object]) -> str:
    """A word of a command with its placeholders replaced; ValueError for one that is unknown."""
    unknown = [name for name in PLACEHOLDER.findall(word) if name not in values]
    if unknown:
        known = ", ".join(f"{{{name}}}" for name in values)
        raise ValueError(f"there is no placeholder {{{unknown[0]}}}; there are {known}")
    return PLACEHOLDER.sub(lambda found: str(values[found[1]]), word)
