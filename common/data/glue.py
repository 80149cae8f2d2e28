"""GLUE's tasks in one table, the rows of their files as Examples, and their metrics."""

import codecs
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple

from common.errors import UserError

BINARY = ("0", "1")
ENTAILMENT = ("entailment", "not_entailment")
NLI = ("contradiction", "entailment", "neutral")  # the base script's order
PAIR = ("sentence1", "sentence2")
COLA = ("source", "label", "mark", "sentence")
FILES = {"train": "train.tsv", "dev": "dev.tsv", "test": "test.tsv"}
MNLI = {
    "train": "train.tsv",
    "dev": "dev_matched.tsv",
    "dev_mismatched": "dev_mismatched.tsv",
    "test": "test_matched.tsv",
    "test_mismatched": "test_mismatched.tsv",
}
AX = {"test": "diagnostic.tsv"}  # to predict with a model trained on MNLI; GLUE keeps the labels


@dataclass(frozen=True)
class GlueTask:
    """One GLUE task: where its text and labels are, and how it is scored.

    `text` and `label` are names in the files' headers; `labels` the label column's words in the
    order of their class ids, or None for a regression on scores of 0 to 5.
    """

    name: str
    text: tuple[str, ...]
    label: str
    labels: tuple[str, ...] | None
    metric: str = "acc"
    files: dict[str, str] = field(default_factory=lambda: FILES)
    no_header: tuple[str, ...] = ()  # the columns of train and dev files that have no header
    skip_short: bool = False  # files with lines broken in two: GLUE counts whole rows only

    @property
    def dev_splits(self) -> list[str]:
        """The splits to evaluate on: two for MNLI, none for AX."""
        return [split for split in self.files if split.startswith("dev")]


GLUE_TASKS: dict[str, GlueTask] = {
    task.name: task
    for task in (
        GlueTask("CoLA", ("sentence",), "label", BINARY, metric="mcc", no_header=COLA),
        GlueTask("SST-2", ("sentence",), "label", BINARY),
        GlueTask("MRPC", ("#1 String", "#2 String"), "Quality", BINARY, metric="f1"),
        GlueTask("STS-B", PAIR, "score", None, metric="corr"),
        GlueTask("QQP", ("question1", "question2"), "is_duplicate", BINARY, "f1", skip_short=True),
        GlueTask("MNLI", PAIR, "gold_label", NLI, files=MNLI),
        GlueTask("QNLI", ("question", "sentence"), "label", ENTAILMENT),
        GlueTask("RTE", PAIR, "label", ENTAILMENT),
        GlueTask("WNLI", PAIR, "label", BINARY),
        GlueTask("AX", PAIR, "gold_label", NLI, metric="mcc", files=AX),
    )
}


class Example(NamedTuple):
    """One row: a sentence or a pair, and its class id or score (None in the test splits)."""

    text_a: str
    text_b: str | None
    label: int | float | None


def find_glue_task(name: str) -> GlueTask:
    """The task of that name, in any case; raises UserError with the names there are."""
    for task in GLUE_TASKS.values():
        if task.name.lower() == name.lower():
            return task
    raise UserError(f"--task_name {name}: must be one of {', '.join(GLUE_TASKS)}")


def read_examples(task: GlueTask, data_dir: str | Path, split: str) -> list[Example]:
    """Read one split of a task (a key of `task.files`), in the file's order.

    Raises UserError with the file, the line, the value and the fix.
    """
    path = find_file(task, data_dir, split)
    return list(parse(task, split, path, lines_of(path)))


def find_file(task: GlueTask, data_dir: str | Path, split: str) -> Path:
    """The file of one split; raises UserError if it is not there."""
    folder, name = Path(data_dir), task.files.get(split)
    if name is None:
        raise UserError(f"{task.name} has no {split} split, only {', '.join(task.files)}")
    if (path := folder / name).is_file():
        return path
    if (folder / task.name / name).is_file():
        raise UserError(f"--data_dir {folder}: is the parent folder; use {folder / task.name}")
    what = f"has no {name}" if folder.is_dir() else "is not a folder"
    raise UserError(
        f"--data_dir {folder}: {what}; give the folder of {task.name}'s files, as downloaded by "
        f"`python download_glue_data.py --data_dir glue_data --tasks {task.name}`"
    )


def lines_of(path: Path) -> Iterator[bytes]:
    """Yield a file's lines with their ends; raises UserError if it cannot be read."""
    try:
        with path.open("rb") as file:
            yield from file
    except OSError as problem:
        raise UserError(f"{path}: cannot be read ({problem.strerror})") from None


def parse(task: GlueTask, split: str, path: Path, lines: Iterable[bytes]) -> Iterator[Example]:
    """Yield the examples in a file's lines; raises UserError, which names `path`."""
    rows = rows_of(path, lines)
    first = list(islice(rows, 2))
    try:
        examples = examples_of(task, split, path, chain(first, rows))
        yield from chain([next(examples)], examples)
    except StopIteration:
        raise UserError(f"{path}: contains no examples; download the file again") from None
    except UserError as problem:
        fits = [o.name for o in GLUE_TASKS.values() if looks_like(o, split, path, first)]
        if not fits or task.name in fits:
            raise
        raise UserError(
            f"{problem}\nIt looks like {' or '.join(fits)}, not {task.name}; it begins with: "
            f"{' | '.join(first[0][1]):.100}\nCorrect --data_dir or --task_name."
        ) from None


def rows_of(path, lines):
    """Yield (line number, columns) of every line that is not blank.

    Lines end at \\n alone (str.splitlines would also split at the U+2028 or \\x85 in some texts),
    columns at every tab: GLUE's quotes are unbalanced and have no meaning.
    """
    for number, line in enumerate(lines, 1):
        data = line.removeprefix(codecs.BOM_UTF8) if number == 1 else line
        try:
            text = data.decode().removesuffix("\n").removesuffix("\r")
        except UnicodeDecodeError as error:
            raise UserError(
                f"{path}, line {number}: byte 0x{data[error.start]:02x} is not UTF-8; "
                "download the file again"
            ) from None
        if text:
            yield number, text.split("\t")


def examples_of(task, split, path, rows):
    """Yield the examples in a file's rows, their columns found by place in the header.

    A row that ends before the last of these is an error, or skipped where GLUE does so (QQP).
    Columns beyond the header's are ignored, as by the loaders that GLUE's row counts come from:
    a stray tab in a sentence shifts what follows, and is an error where that is the label.
    """
    rows = iter(rows)
    labeled = not split.startswith("test")
    header = task.no_header if labeled else ()
    if not header:
        _, header = next(rows, (0, None))
        if header is None:
            return
    wanted = (*task.text, task.label) if labeled else task.text
    if missing := [name for name in wanted if name not in header]:
        raise UserError(
            f"{path}, line 1: the header has no column {' or '.join(missing)}; "
            "download the file again"
        )
    places = [header.index(name) for name in wanted]
    for line, row in rows:
        if task.skip_short and len(row) <= max(places):
            continue
        try:
            yield example_of(task, row, places)
        except ValueError as problem:
            raise UserError(
                f"{path}, line {line}: {problem} ({len(row)} columns; there should be "
                f"{len(header)}). Is there a stray tab? If not, download the file again"
            ) from None


def example_of(task, row, places):
    """The example in a row that has its text, and its label if any, in `places`."""
    if len(row) <= max(places):
        raise ValueError("the row is cut off")
    words = [row[place] for place in places]
    text, label = words[: len(task.text)], words[len(task.text) :]
    return Example(
        text[0],
        text[1] if len(text) == 2 else None,
        label_of(task, label[0]) if label else None,
    )


def label_of(task, word):
    """The class id or the score that a label's word stands for; raises ValueError."""
    if task.labels is not None:
        if word not in task.labels:
            raise ValueError(f"the label {word!r:.50} is not one of {', '.join(task.labels)}")
        return task.labels.index(word)
    if not 0 <= float(word) <= 5:
        raise ValueError(f"the score {word} is not from 0 to 5")
    return float(word)


def looks_like(task, split, path, rows):
    """Whether the first rows of a file can be read as that task's."""
    try:
        return any(examples_of(task, split, path, rows))
    except UserError:
        return False


def score(task: GlueTask, predictions, labels) -> dict[str, float]:
    """A task's metrics, with the base script's names, of class ids (or scores) against labels.

    Where one is not defined (constant or non-finite predictions) it is 0. Raises ValueError if
    the lengths differ or are 0. Source: the GLUE paper, table 1 (arxiv.org/abs/1804.07461).
    """
    import numpy as np  # these take a second to import
    from scipy import stats
    from sklearn import metrics

    predictions, labels = np.asarray(predictions), np.asarray(labels)
    if predictions.shape != labels.shape or labels.ndim != 1 or not labels.size:
        raise ValueError(f"predictions of shape {predictions.shape}, labels of {labels.shape}")
    defined = all(np.isfinite(x).all() and np.ptp(x) > 0 for x in (predictions, labels))
    if task.metric == "corr":
        both: Any = (stats.pearsonr, stats.spearmanr)  # each returns (coefficient, p-value)
        pearson, spearman = (float(f(predictions, labels)[0]) if defined else 0.0 for f in both)
        return {"pearson": pearson, "spearmanr": spearman, "corr": (pearson + spearman) / 2}
    if task.metric == "mcc":
        return {"mcc": float(metrics.matthews_corrcoef(labels, predictions)) if defined else 0.0}
    accuracy = float(metrics.accuracy_score(labels, predictions))
    if task.metric == "acc":
        return {"acc": accuracy}
    zero: Any = 0.0  # a number is as good as "warn", which alone the hint names
    f1 = float(metrics.f1_score(labels, predictions, zero_division=zero))
    return {"acc": accuracy, "f1": f1, "acc_and_f1": (accuracy + f1) / 2}
