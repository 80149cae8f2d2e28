"""What the probes saw of a submission's run, by rank and step."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from grading.plan import Ended

import numpy as np

TRANSFERS = ("send", "recv")  # between two ranks, where a collective is among all
BOOKKEEPING = 64  # elements: a collective of at most these carries losses or counts, not gradients


@dataclass
class Forward:
    """One pass of the model over a batch: its rows without padding, and its outputs."""

    rows: list  # of (ids, types, label)
    masked: bool  # whether an attention mask hides just the padding
    training: bool  # whether the model and all its parts are in training mode
    loss: float | None
    predictions: np.ndarray | None
    entered: float = 0.0  # clock time at which it began
    outputs: int = 0  # elements of its logits, or of what a stage of a pipeline returns
    losses: list[float] | None = None  # where the model returns several
    arrays: dict = field(default_factory=dict)  # of a pre-training batch: all that it holds


@dataclass
class Step:
    """One update on one rank. Arrays of sketches have the shape (tensors, WIDTH)."""

    forwards: list[Forward]
    values: list  # numbers that backward was called on
    gradients: np.ndarray
    rate: float  # the largest learning rate of its parameter groups
    optimizer: str  # the module that its class is from
    after: Any = None  # the new weights, like gradients
    checksums: list = field(default_factory=list)  # of the new weights
    collectives: list = field(default_factory=list)  # from its first backward pass to its update
    late: list = field(default_factory=list)  # from its update to the next pass
    seconds: float = 0.0  # clock time at which the update began
    weights_changed_early: bool = False  # between its first pass and its update
    waited: float = 0.0  # seconds from the end of the last backward pass to the update
    decay: float = 0.0  # the largest weight decay of its parameter groups
    held: int = 0  # elements of the gradients that there are at the update
    content: list | None = None  # their magnitudes (grading.worker.sketch), if they were taken
    own: list = field(default_factory=list)  # those of the gradients before they are averaged
    local: Any = None  # these gradients' sketches, if they were taken
    local_norm: float = 0.0
    parts: list | None = None  # [first, last) of what the optimizer updates, by tensor; None: all
    norm: float = 0.0  # of the gradients that the optimizer reads
    outside: int = 0  # elements of these that are not 0, and no weight's
    updated: Any = None  # the weights when the update has ended, like gradients
    moments: tuple = (0, 0)  # checksums of the optimizer's, before and after the update
    memory: dict = field(default_factory=dict)  # bytes of weights, gradients and optimizer_state
    passes: list = field(default_factory=list)  # in order: a Forward, or None for a backward pass

    @property
    def rows(self) -> list:
        """The step's rows, of all its passes."""
        return [row for forward in self.forwards for row in forward.rows]

    @property
    def loss(self) -> float | None:
        """The mean loss over the step's rows; None if some pass had none."""
        if any(forward.losses for forward in self.forwards):
            return None  # they are compared one by one
        losses = [forward.loss for forward in self.forwards if forward.loss is not None]
        if not losses or len(losses) < len(self.forwards):
            return self.values[0] if len(self.values) == len(self.forwards) == 1 else None
        weights = [len(forward.rows) for forward in self.forwards]
        return float(np.average(losses, weights=weights))


@dataclass
class Evaluation:
    """The rows of forward passes without gradients, after a number of updates."""

    after: int
    rows: list
    predictions: list
    left: float = 0.0  # clock time at which the last pass ended
    masked: bool = True  # whether attention masks hid just the padding, in all passes
    training: bool = False  # whether the model was in training mode in some pass


@dataclass
class Rank:
    """What one rank did, in order."""

    names: list[str] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    parts: list | None = None  # [first, last) of the weights that it holds; None: all
    ddp: bool = False
    start: Any = None  # the first weights (tensors, WIDTH)
    steps: list[Step] = field(default_factory=list)
    evaluations: list[Evaluation] = field(default_factory=list)
    collectives: list = field(default_factory=list)
    pieces: list = field(default_factory=list)  # whether it has a part of each matrix only
    workers: list["Rank"] = field(default_factory=list)  # each has a part of the model; or none
    broken: str = ""
    out: str = ""
    err: str = ""


@dataclass
class Observation:
    """One run: its ranks, how they ended, its folder, and what it wrote there."""

    ranks: list[Rank]
    ended: Ended
    root: Path = Path()
    written: str = ""  # the text of the files that it wrote
    weighted: bool = False  # whether every rank's gradient counts by its examples
    sharded: bool = False  # whether the task cuts weights, or what belongs to them
    saved: dict = field(default_factory=dict)  # sketches of the tensors that it saved, by name

    def shares(self, step: int) -> np.ndarray:
        """What the ranks' own gradients count for in a step's mean: (ranks), of sum 1."""
        counts = np.array([len(rank.steps[step].rows) for rank in self.ranks], float)
        if not self.weighted or not counts.any():
            counts = np.ones(len(self.ranks))
        return counts / counts.sum()

    @property
    def workers(self) -> list[Rank]:
        """Its processes: the ranks, or where these are replicas of a divided model, their parts."""
        return [one for rank in self.ranks for one in rank.workers or [rank]]

    @property
    def steps(self) -> int:
        """How many steps all ranks have done."""
        return min(len(rank.steps) for rank in self.ranks)
