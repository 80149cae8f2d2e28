"""The rubric: which checks each task has, what they are worth, and what each needs."""

import json
from dataclasses import dataclass
from math import sqrt
from pathlib import Path
from typing import NamedTuple

from common.errors import UserError
from grading.results import VISIBILITIES

import yaml

FILE = Path(__file__).with_name("rubric.yaml")
TOLERANCES = Path(__file__).with_name("tolerances.json")
MISTAKES = "docs/mistakes.md"
BY_HEADING = {
    "Summed, not averaged": ("summed",),
    "Averaged twice, or scaled otherwise": ("divided_twice", "scaled", "loss_scaled"),
    "Clip after averaging": ("clipped_before_average", "not_clipped"),
    "Gradients that are not synchronized": ("no_sync", "averaged_too_late", "ranks_drift"),
    "Only some ranks have the mean": ("only_root_has_mean",),
    "A rank, or a tensor, is left out": (
        *("rank_left_out", "tensors_left_out", "zeroed", "rounded", "mixed"),
    ),
    "Averaging the parameters instead": ("parameters_averaged",),
    "Each rank its own share": ("same_data", "rows_missing", "rows_shared"),
    "The total batch": ("batch_not_divided",),
    "A new order in every epoch": ("not_reshuffled",),
    "Gradients that add up": ("gradients_kept", "accumulation_unscaled"),
    "Where training starts": ("different_start",),
    "The update": ("wrong_update", "unscheduled", "wrong_rate", "no_mask"),
    "The collective that the task asks for": ("wrong_collective",),
    "Ranks that wait for each other": ("hang", "dead_rank"),
    "What to print": ("not_printed", "metric_missing", "shard_evaluated"),
    "Discard the first iteration": ("first_iteration_timed", "not_timed"),
    "Counting bytes": ("wrong_traffic",),
    "Runs to the end": ("crashed", "memory", "no_training", "missing", "tampered"),
}
SECTIONS = {
    **{f"task{name}": f"task{name}/README.md" for name in ("1", "2a", "2b", "3", "4")},
    **{
        cause: f'{MISTAKES}, "{heading}"'
        for heading, causes in BY_HEADING.items()
        for cause in causes
    },
}


class Check(NamedTuple):
    """One check of one task; `needs` are names of checks that must have passed before.

    `visibility` is Gradescope's: visible, hidden, after_due_date or after_published.
    """

    task: str
    name: str
    title: str
    points: float
    needs: tuple
    visibility: str = "visible"

    @property
    def id(self):
        return f"{self.task}/{self.name}"


def load(file=FILE, tasks=None):
    """The rubric's checks, in order; only those of `tasks`, if given.

    Raises UserError for a file that is not a rubric, with what is wrong in it.
    """
    from grading.checks import CHECKS

    try:
        facts = yaml.safe_load(Path(file).read_text())
        texts, points = facts["checks"], facts["points"]
        found = [
            Check(
                *(task, name, str(texts[name]["title"]), float(worth), tuple(texts[name]["needs"])),
                texts[name].get("visibility", "visible"),
            )
            for task, of_task in points.items()
            for name, worth in of_task.items()
        ]
    except (OSError, yaml.YAMLError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise UserError(f"{file}: is no rubric ({type(error).__name__}: {error})") from None
    for check in found:
        unknown = {check.name, *check.needs} - set(CHECKS)
        if unknown:
            raise UserError(
                f"{file}: {check.id}: there is no check {', '.join(sorted(unknown))}; there are "
                f"{', '.join(CHECKS)}"
            )
        if check.visibility not in VISIBILITIES:
            raise UserError(f"{file}: {check.id}: visibility is one of {', '.join(VISIBILITIES)}")
        if check.points < 0:
            raise UserError(f"{file}: {check.id}: {check.points:g} points; give 0 or more")
    unknown = set(tasks or ()) - {check.task for check in found}
    if unknown:
        raise UserError(f"there is no task {', '.join(sorted(unknown))} in {file}")
    return [check for check in found if not tasks or check.task in tasks]


@dataclass(frozen=True)
class Allowed:
    """The limit of one measure, and the measurements it comes from."""

    noise: float  # the most that a right submission of the gallery was off
    wrong: float  # the least that a wrong one, which this measure must find, was off

    @property
    def most(self):
        """The geometric mean of the two: equally far, in orders of magnitude, from either."""
        return sqrt(max(self.noise, 1e-9) * self.wrong)

    @property
    def text(self):
        return (
            f"{self.most:.1e} (right submissions: at most {self.noise:.1e}; nearest wrong one: "
            f"{self.wrong:.1e})"
        )


def load_tolerances(file=TOLERANCES):
    """Measure -> Allowed."""
    return {name: Allowed(**facts) for name, facts in json.loads(file.read_text()).items()}
