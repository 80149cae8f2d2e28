"""What a submission's run was seen to do: the probes' lines, put in order by rank and step."""

import json
from dataclasses import dataclass, field
from pathlib import Path

from grading.sandbox import Ended
from grading.sketch import unpack

import numpy as np

LARGEST = 256 * 2**20  # bytes of one worker's record that are read


@dataclass
class Forward:
    """One pass of the model over a batch: its rows, trimmed of padding, and what it gave."""

    rows: list  # of (ids, types, label)
    masked: bool  # whether an attention mask hides just the padding
    training: bool
    loss: float | None
    predictions: np.ndarray | None


@dataclass
class Step:
    """One update on one rank. Arrays of sketches have the shape (tensors, WIDTH)."""

    forwards: list
    values: list  # what backward was called on
    gradients: np.ndarray
    rate: float  # the largest learning rate of its parameter groups
    optimizer: str  # the module that its class is from
    before: np.ndarray | None
    after: np.ndarray | None = None
    sums: list = field(default_factory=list)  # the new weights' checksums
    collectives: list = field(default_factory=list)  # from its first pass to its update
    late: list = field(default_factory=list)  # from its update to the next pass
    seconds: float = 0.0  # on the clock, when the update began
    shifted: bool = False  # whether the weights changed between its first pass and its update
    waited: float = 0.0  # seconds from the end of the last backward pass to the update

    @property
    def rows(self):
        """The step's rows, of all its passes."""
        return [row for forward in self.forwards for row in forward.rows]

    @property
    def loss(self):
        """The mean loss over the step's rows; None if some pass gave none."""
        if not self.forwards or any(f.loss is None for f in self.forwards):
            return self.values[0] if len(self.values) == len(self.forwards) == 1 else None
        return float(
            np.average(
                [f.loss for f in self.forwards], weights=[len(f.rows) for f in self.forwards]
            )
        )


@dataclass
class Evaluation:
    """What the model was given, without gradients, after a number of updates."""

    after: int
    rows: list
    predictions: list


@dataclass
class Rank:
    """What one rank did, in order."""

    names: list = field(default_factory=list)
    sizes: list = field(default_factory=list)
    ddp: bool = False
    start: np.ndarray | None = None
    steps: list = field(default_factory=list)
    evaluations: list = field(default_factory=list)
    collectives: list = field(default_factory=list)
    broken: str = ""
    out: str = ""
    err: str = ""


@dataclass
class Observation:
    """One run: its ranks, how they ended, its folder, and what it left there."""

    ranks: list
    ended: Ended
    root: Path = Path()
    left: str = ""  # the text of what lies in the output folder

    @property
    def steps(self):
        """How many steps all ranks have done."""
        return min(len(rank.steps) for rank in self.ranks)


def read_rank(folder, number):
    """The Rank that its probe's file tells of."""
    rank = Rank()
    rank.out, rank.err = (read_text(Path(folder) / f"{number}.{end}") for end in ("out", "err"))
    reader = Reader(rank)
    with (Path(folder) / f"{number}.events").open("rb") as file:
        for line in file.read(LARGEST).split(b"\n")[:-1]:  # the last was cut short, if not empty
            try:
                event = json.loads(line)
                getattr(reader, event.pop("event"))(**event)
            except (ValueError, TypeError, KeyError, AttributeError, IndexError) as error:
                rank.broken = f"{type(error).__name__}: {error}"
                break
    return rank


def read_text(path, most=2**20):
    """The text in a file's first bytes, whatever they are."""
    with path.open("rb") as file:
        return file.read(most).decode("utf-8", "replace")


class Reader:
    """Takes a probe's events, each by the method of its name."""

    def __init__(self, rank):
        self.rank, self.current, self.sums, self.ended = rank, None, [], 0.0
        self.forwards, self.values, self.collectives = [], [], []
        self.done = []  # passes whose backward has run
        self.shifted = False

    def model(self, names, sizes, ddp):
        if not self.rank.names:
            self.rank.names, self.rank.sizes = [str(name) for name in names], sizes
        self.rank.ddp = self.rank.ddp or ddp

    def weights(self, weights, checksums):
        self.current, self.sums = unpack(weights), checksums
        if self.rank.start is None:
            self.rank.start = self.current
        elif self.done:
            self.shifted = True
        elif self.rank.steps and not self.forwards:  # changed after the update, before the next
            self.rank.steps[-1].after, self.rank.steps[-1].sums = self.current, checksums

    def updated(self, weights, checksums):
        self.current, self.sums = unpack(weights), checksums
        self.rank.steps[-1].after, self.rank.steps[-1].sums = self.current, checksums

    def forward(self, grad, training, rows, loss, logits):
        arrays = {name: unpack(packed) for name, packed in rows.items()}
        trimmed, masked = trim(arrays)
        predictions = None if logits is None else unpack(logits).argmax(axis=-1)
        one = Forward(trimmed, masked, training, loss, predictions)
        if grad:
            if self.rank.steps and not self.done and not self.forwards:
                self.rank.steps[-1].late, self.collectives = self.collectives, []
            self.forwards.append(one)
            return
        steps, seen = len(self.rank.steps), self.rank.evaluations
        if not seen or seen[-1].after != steps:
            seen.append(Evaluation(steps, [], []))
        seen[-1].rows += trimmed
        seen[-1].predictions += [] if predictions is None else predictions.tolist()

    def backward(self, value):
        trained = [f for f in self.forwards if f.training] or self.forwards
        self.values.append(value)
        self.done += trained[-1:]
        self.forwards = []

    def swept(self, seconds):
        self.ended = seconds

    def step(self, gradients, rate, optimizer, seconds):
        one = Step(self.done, self.values, unpack(gradients), rate, optimizer, self.current)
        one.after, one.sums = self.current, self.sums  # unless it is told otherwise
        one.collectives, one.seconds = self.collectives, seconds
        one.waited, one.shifted = seconds - self.ended, self.shifted
        self.rank.steps.append(one)
        self.done, self.values, self.collectives, self.forwards = [], [], [], []
        self.shifted = False

    def collective(self, **facts):
        self.rank.collectives.append(facts)
        self.collectives.append(facts)


def trim(arrays):
    """The rows of a batch, without padding, and whether the mask hides exactly the padding."""
    ids = arrays["input_ids"]
    types = arrays.get("token_type_ids", np.zeros_like(ids))
    labels = arrays.get("labels", np.full(len(ids), -1)).reshape(len(ids), -1)[:, 0]
    lengths = ids.shape[1] - (ids[:, ::-1] != 0).argmax(axis=1)
    rows = [
        (tuple(row[:n].tolist()), tuple(kind[:n].tolist()), int(label))
        for row, kind, label, n in zip(ids, types, labels, lengths, strict=True)
    ]
    padding = np.arange(ids.shape[1]) >= lengths[:, None]
    mask = arrays.get("attention_mask", np.ones_like(ids)).reshape(ids.shape[0], -1)
    masked = mask.shape != ids.shape or bool(((mask == 0) == padding).all())
    return rows, masked


def batch_of(rows):
    """Rows as the model's input: a dict of int64 arrays, padded, with their mask."""
    longest = max(len(ids) for ids, _, _ in rows)

    def padded(values):
        return np.array([[*value, *[0] * (longest - len(value))] for value in values], np.int64)

    return {
        "input_ids": padded([ids for ids, _, _ in rows]),
        "token_type_ids": padded([types for _, types, _ in rows]),
        "attention_mask": padded([[1] * len(ids) for ids, _, _ in rows]),
        "labels": np.array([label for _, _, label in rows], np.int64),
    }


def place(names, known):
    """For every known name, where `names` has it, perhaps with a prefix; None where it has not.

    A submission may keep its model inside a module of its own: then all names begin alike.
    """
    shorter = min(names, key=len, default="")
    prefixes = {"", *(n[: -len(k)] for n in names for k in known if n.endswith(f".{k}"))}
    prefix = max(prefixes, key=lambda p: sum(f"{p}{k}" in names for k in known)) if shorter else ""
    return [names.index(f"{prefix}{k}") if f"{prefix}{k}" in names else None for k in known]
