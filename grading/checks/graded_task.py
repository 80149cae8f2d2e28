"""One task of a submission, as its checks see it."""

from dataclasses import dataclass, field
from typing import Any

from common.tasks import Task
from grading import inputs
from grading.checks.evidence import Evidence
from grading.checks.observation import Observation
from grading.known_rows import Known
from grading.plan import Limits
from grading.pretraining_inputs import SETTINGS


@dataclass
class GradedTask:
    """One task of a submission: how it is run, and its runs by setting.

    `workers` read rows of their own; where the task divides the model, each of them is a replica
    of it, `divided_over` so many processes. `batch` is their examples for one update; `others` are
    short runs by their number of workers, and `batches` a worker's examples in each; `tolerances`
    is measure -> grading.rubric.Allowed; `known` is data set -> split -> its rows; `corpus` is the
    text that is pre-trained on, in token ids; `length_given` is whether the command gives
    --max_seq_length.
    """

    task: Task
    workers: int
    batch: int
    tolerances: dict[str, Any]
    known: dict[str, dict[str, Known]]
    divided_over: int = 1
    length_given: bool = True
    limits: Limits = field(default_factory=Limits)
    runs: dict[str, Evidence] = field(default_factory=dict)
    others: dict[int, Evidence] = field(default_factory=dict)
    batches: dict[int, int] = field(default_factory=dict)
    measured: dict[str, float] = field(default_factory=dict)  # check -> largest deviation
    corpus: str = ""
    functions: Any = None  # what task 8's functions returned
    again: dict[str, Observation] = field(default_factory=dict)  # runs that went on from others

    @property
    def processes(self) -> int:
        """How many processes are started."""
        return self.workers * self.divided_over

    @property
    def parts(self) -> list[int]:
        """The examples of each worker for one update, by rank."""
        if self.task.weighted:
            return inputs.uneven_parts(self.batch * self.workers, self.workers)
        return [self.batch] * self.workers

    def rows(self, setting: str, split: str = "train") -> int:
        """How many rows a setting's training or dev set has; of pre-training, those of a run."""
        if self.corpus:
            return SETTINGS[setting].updates * self.batch * self.workers
        train, dev = inputs.ROWS[inputs.SETTINGS[setting].rows]
        return dev if split == "dev" else train

    def known_rows(self, setting: str, split: str = "train") -> Known:
        """Token ids -> the Row of a setting's training or dev set."""
        return self.known.get(inputs.SETTINGS[setting].rows, {}).get(split, {})
