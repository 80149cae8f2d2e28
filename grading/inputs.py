"""The inputs of every run: a small model and data sets, built once for a grading session."""

import contextlib
import csv
from dataclasses import dataclass, replace
from pathlib import Path

from common.tasks import Task

import psutil

TOTAL_BATCH = 16  # examples of all workers for one update
ASSIGNED_BATCH = 64  # the same in the assignment, for scripts that insist on it
NEEDED = 1.2 * 2**30  # bytes of memory that four workers and the grader need
EVAL_BATCH = 8
LENGTH = 64  # tokens
LEARNING_RATE = 2e-5
DEFAULT_DECAY = 0.01  # torch's AdamW has it if it is not given another: not held against anybody
# Rows that do not fill the last batch, nor divide by the workers: as RTE's 2,490 do not.
ROWS = {"short": (78, 10), "long": (222, 30)}  # (training set, dev set)
SAMPLE = Path(__file__).resolve().parents[1] / "sample_data" / "RTE"

OTHER_WORKERS = (2, 3)  # of the runs in the setting "few"
MODEL, DEEP = "model", "deep"  # folders: a BERT of two layers, and one that makes four stages
DEEP_LAYERS = 4
MICROBATCHES = 4
SMALL_GROUP = 2  # workers that hold a replica's parts in a grid, or of a matrix: it has two heads


@dataclass(frozen=True)
class Setting:
    """One way of running a submission, chosen for the mistakes that it exposes.

    With a `learning_rate` updates are plain gradient descent, whatever the optimizer.
    """

    name: str
    rows: str  # its data set, in ROWS
    epochs: int
    max_grad_norm: float
    learning_rate: float | None = None
    pause: float = 0.0  # seconds added to the first iteration
    steps: int = 0  # updates after which a worker is ended; 0 for none


SETTINGS = {
    "plain": Setting("plain", "short", 1, 1e6, learning_rate=0.02),
    "clipped": Setting("clipped", "short", 1, 0.1, learning_rate=0.5),
    "adamw": Setting("adamw", "long", 3, 1.0, pause=3.0),
    "few": Setting("few", "short", 1, 1e6, learning_rate=0.02, steps=3),
}


def setting_for(name: str, total: int) -> Setting:
    """A setting with as many updates for another total batch, which takes more epochs."""
    setting = SETTINGS[name]
    return replace(setting, epochs=setting.epochs * total // TOTAL_BATCH)


def uneven_parts(total: int, workers: int) -> list[int]:
    """Examples of each worker, by rank, of a task that takes unequal parts: the first has most."""
    shares = workers * (workers + 1) // 2
    parts = [total * (workers - rank) // shares for rank in range(workers)]
    return [parts[0] + total - sum(parts), *parts[1:]]


def division(task: Task, workers: int) -> tuple[int, int]:
    """(replicas of the model, workers that each of them is divided over) of a task's runs."""
    if not task.distributed:
        return 1, 1
    if not task.divided:
        return workers, 1
    if not task.schedule:
        return 1, SMALL_GROUP
    if "all_reduce" in task.collectives:
        return workers // SMALL_GROUP, SMALL_GROUP
    return 1, workers


def model_for(task: Task) -> str:
    """The folder of the model that a task is given."""
    return DEEP if task.schedule else MODEL


def worker_count() -> int:
    """How many workers a distributed run has: 4, or 2 where there is little memory."""
    return 4 if memory_limit() >= NEEDED else 2


def memory_limit() -> float:
    """The bytes of memory that this process may use: the machine's, or its container's."""
    found = [psutil.virtual_memory().total]
    groups = ["/"]
    with contextlib.suppress(OSError):
        lines = Path("/proc/self/cgroup").read_text().splitlines()
        groups += [line.split(":")[2] for line in lines if line.split(":")[1] in ("", "memory")]
    for group in groups:
        for file in ("memory.max", "memory/memory.limit_in_bytes"):
            first, _, name = file.rpartition("/")
            with contextlib.suppress(OSError, ValueError):
                path = Path("/sys/fs/cgroup", first, group.lstrip("/"), name)
                found.append(int(path.read_text()))
    return min(found)


def build(folder: Path) -> dict[str, dict[tuple, int]]:
    """Write the models and the data sets into `folder`.

    Returns, for each data set, the labels of all its rows by their token ids.
    """
    from common.models.tiny import tiny_model, tiny_tokenizer

    import torch
    import transformers

    transformers.logging.disable_progress_bar()
    tokenizer = tiny_tokenizer()
    words = sorted(tokenizer.get_vocab().items(), key=lambda entry: entry[1])
    for name, model in ((MODEL, tiny_model(2)), (DEEP, tiny_model(2, DEEP_LAYERS))):
        model.config.hidden_dropout_prob = model.config.attention_probs_dropout_prob = 0.0
        model.save_pretrained(folder / name)
        tokenizer.save_pretrained(folder / name)
        torch.save(model.state_dict(), folder / name / "pytorch_model.bin")
        (folder / name / "vocab.txt").write_text("".join(f"{word}\n" for word, _ in words))
    cased = type(tokenizer)(vocab=tokenizer.get_vocab(), do_lower_case=False)
    labels = {}
    for name, (train, dev) in ROWS.items():
        (folder / name).mkdir()
        labels[name], taken = {}, set()
        for file, count in (("train.tsv", train), ("dev.tsv", dev)):
            target = folder / name / file
            labels[name] |= write_rows(SAMPLE / file, target, count, (tokenizer, cased), taken)
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)  # safetensors lets only the owner read
    return labels


def write_rows(source, target, count, tokenizers, taken):
    """Write the header and the first rows whose tokens differ from all in `taken`, and add theirs.

    Tokens of any of `tokenizers` count; returned are the labels by the token ids of the first.
    """
    with source.open(newline="") as file:
        header, *rows = csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE)
    from common.data.glue import find_glue_task

    words = find_glue_task("RTE").labels or ()
    labels, lines = {}, ["\t".join(header)]
    for row in rows:
        readings = [
            tuple(tokenizer(row[1], row[2], truncation=True, max_length=LENGTH).input_ids)
            for tokenizer in tokenizers
        ]
        if taken.isdisjoint(readings) and len(labels) < count:
            taken.update(readings)
            labels[readings[0]] = words.index(row[3])
            lines.append("\t".join(row))
    if len(labels) < count:
        raise ValueError(f"{source}: only {len(labels)} distinct rows; {count} are needed")
    target.write_text("\n".join(lines) + "\n")
    return labels
