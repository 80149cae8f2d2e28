"""What a submission's run was seen to do, by rank and step."""

from dataclasses import dataclass, field
from pathlib import Path

from grading.plan import Ended

import numpy as np

BOOKKEEPING = 64  # elements: a collective of no more is about losses or counts, not gradients


@dataclass
class Forward:
    """One pass of the model over a batch: its rows, trimmed of padding, and what it gave."""

    rows: list  # of (ids, types, label)
    masked: bool  # whether an attention mask hides just the padding
    training: bool
    loss: float | None
    predictions: np.ndarray | None
    entered: float = 0.0  # on the clock, when it began


@dataclass
class Step:
    """One update on one rank. Arrays of sketches have the shape (tensors, WIDTH)."""

    forwards: list
    values: list  # what backward was called on
    gradients: np.ndarray
    rate: float  # the largest learning rate of its parameter groups
    optimizer: str  # the module that its class is from
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
