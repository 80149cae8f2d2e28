"""The rubric: each task's checks, their points, what each needs, and its tolerances."""

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from math import inf, sqrt
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from common.errors import UserError
from common.tasks import SCRIPTS
from grading.checks import CHECKS, DEFAULT_SETTING, SETTING_OF
from grading.inputs import SETTINGS
from grading.pretraining_inputs import SETTINGS as PRETRAINING_SETTINGS
from grading.results import VISIBILITIES

import yaml

FILE = Path(__file__).with_name("rubric.yaml")
TOLERANCES = Path(__file__).with_name("tolerances.json")
MISTAKES = "docs/mistakes.md"
BY_HEADING = {  # section of MISTAKES -> the causes that it explains
    "Summed, not averaged": ("summed",),
    "The mean of means": ("mean_of_means", "wrong_weights", "weights_of_full_batch"),
    "Averaged twice, or scaled otherwise": ("divided_twice", "scaled", "loss_scaled"),
    "Clip after averaging": (
        "clipped_before_average",
        "not_clipped",
        "clipped_per_tensor",
        "clipped_by_value",
    ),
    "Gradients that are not synchronized": (
        "no_sync",
        "averaged_too_late",
        "averaged_too_early",
        "ranks_drift",
    ),
    "Hiding the all_reduce": ("not_overlapped",),
    "Only some ranks have the mean": ("only_root_has_mean",),
    "A rank, or a tensor, is left out": (
        "rank_left_out",
        "tensors_left_out",
        "zeroed",
        "rounded",
        "mixed",
    ),
    "Averaging the parameters instead": ("parameters_averaged",),
    "Any number of workers": ("fixed_world_size",),
    "Each rank its own share": (
        "same_data",
        "rows_missing",
        "rows_shared",
        "dev_rows_trained",
        "unknown_rows",
    ),
    "What the model reads": (
        "no_mask",
        "no_token_types",
        "wrong_labels",
        "texts_swapped",
        "text_missing",
        "wrong_truncation",
    ),
    "Training mode and evaluation mode": ("eval_mode", "evaluated_in_training_mode"),
    "The total batch": ("batch_not_divided", "parts_not_kept"),
    "A new order in every epoch": ("not_reshuffled",),
    "Gradients that add up": ("gradients_kept", "accumulation_unscaled"),
    "Where training starts": ("different_start",),
    "The update": (
        "wrong_update",
        "wrong_decay",
        "not_updated",
        "unscheduled",
        "wrong_rate",
        "rate_per_epoch",
        "rate_per_micro_batch",
        "rates_differ",
        "does_not_fall",
    ),
    "The collective that the task asks for": (
        "wrong_collective",
        "wrong_payload",
        "wrong_reduction",
    ),
    "Ranks that wait for each other": ("hang", "dead_rank", "evaluated_alone"),
    "What to print": (
        "not_printed",
        "guessed",
        "metric_missing",
        "shard_evaluated",
        "scored_twice",
        "train_rows_evaluated",
    ),
    "Discard the first iteration": ("first_iteration_timed", "not_timed"),
    "Counting bytes": ("wrong_traffic",),
    "Only a part for each worker": ("not_sharded",),
    "One norm of all slices": ("clipped_by_local_norm", "padding_counted"),
    "Gather what was updated": ("not_gathered", "gathered_old_weights"),
    "Save the whole model": ("not_saved", "saved_wrong"),
    "A part of the model for each worker": ("not_divided", "parts_read_differently"),
    "Gradients across a border": ("graph_cut", "wrong_border"),
    "The order of a pipeline's passes": ("wrong_order",),
    "Sums of parts": ("parts_not_summed",),
    "Masked words and pairs": (
        "mask_share",
        "mask_kinds",
        "all_predicted",
        "special_masked",
        "pad_predicted",
        "labels_missing",
        "wrong_labels",
        "static_masks",
        "pairs_uneven",
        "pairs_mislabeled",
    ),
    "Two losses, two weights": ("one_weight", "loss_left_out"),
    "A trust ratio for each weight": (
        "lamb_one_norm",
        "lamb_unbounded",
        "lamb_zero_norm",
        "lamb_inverted",
        "lamb_no_ratio",
        "lamb_moments",
        "lamb_wrong",
    ),
    "Scale, unscale, clip": (
        "loss_not_scaled",
        "clipped_scaled",
        "not_unscaled",
        "not_skipped",
        "schedule_of_skipped",
    ),
    "Go on where it ended": (
        "resumed_elsewhere",
        "moments_lost",
        "schedule_lost",
        "random_states_lost",
        "moments_reset",
        "not_warmed_up",
    ),
    "Runs to the end": ("crashed", "memory", "no_training", "missing", "tampered"),
}
SECTIONS = {  # task or cause -> where the handout explains it
    **{name: f"{task.folder}/README.md" for name, task in SCRIPTS.items()},
    **{
        cause: f'{MISTAKES}, "{heading}"'
        for heading, causes in BY_HEADING.items()
        for cause in causes
    },
}


class Check(NamedTuple):
    """One check of one task; `needs` are names of checks that must have passed before.

    `void` is check -> the cause: if that check has failed for it, this one means nothing.
    `visibility` is Gradescope's: visible, hidden, after_due_date or after_published.
    """

    task: str
    name: str
    title: str
    points: float
    needs: tuple[str, ...]
    visibility: str = "visible"
    void: Mapping[str, str] = MappingProxyType({})

    @property
    def id(self) -> str:
        """Its name in reports and tests: "task2a/gradients"."""
        return f"{self.task}/{self.name}"


class ManualItem(NamedTuple):
    """What people judge, such as a part of the report; its points are entered by hand."""

    name: str
    title: str
    points: float


def load(file: Path = FILE, tasks: Collection[str] | None = None) -> list[Check]:
    """The rubric's checks, in order: of the assigned tasks, or those of `tasks`, if given.

    Raises UserError for a file that is not a valid rubric, with what is wrong in it.
    """
    try:
        facts = yaml.safe_load(Path(file).read_text())
        assigned = parse_all(facts, "points")
        further = parse_all(facts, "further")
    except (OSError, yaml.YAMLError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise UserError(f"{file} is not a valid rubric ({type(error).__name__}: {error})") from None
    found = [*assigned, *further]
    for check in found:
        problem = problem_of(check)
        if problem:
            raise UserError(f"{file}: {check.id}: {problem}")
    points = sum(item.points for item in (*assigned, *load_manual(file)))
    total = facts.get("total", "not given")
    if not isinstance(total, (int, float)) or abs(points - total) > 1e-6:
        raise UserError(
            f"{file}: its points sum to {points:g}, but `total` is {total}; correct one of them"
        )
    unknown = set(tasks or ()) - {check.task for check in found}
    if unknown:
        raise UserError(f"there is no task {', '.join(sorted(unknown))} in {file}")
    return [check for check in found if check.task in tasks] if tasks else assigned


def load_further(file: Path = FILE) -> list[Check]:
    """The checks of the further tasks that a rubric has."""
    names = [name for name, task in SCRIPTS.items() if task.further]
    facts = yaml.safe_load(Path(file).read_text())
    return [check for check in parse_all(facts, "further") if check.task in names]


def load_manual(file: Path = FILE) -> list[ManualItem]:
    """The rubric's manual items, in order; UserError for those that are not valid."""
    try:
        facts = yaml.safe_load(Path(file).read_text()).get("manual") or {}
        found = [
            ManualItem(str(name), str(item["title"]), float(item["points"]))
            for name, item in facts.items()
        ]
    except (OSError, yaml.YAMLError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise UserError(
            f"{file}: `manual` is not valid ({type(error).__name__}: {error}); "
            'write NAME: {title: "...", points: 10}'
        ) from None
    for item in found:
        if not 0 <= item.points < inf:
            raise UserError(f"{file}: manual/{item.name}: {item.points:g} points: give 0 or more")
    return found


def parse_all(facts: dict, part: str) -> list[Check]:
    """The checks of a part of the file: `points`, or `further`, which may be left out."""
    return [
        parse(task, name, points, facts["checks"][name])
        for task, points_of in (facts[part] if part == "points" else facts.get(part, {})).items()
        for name, points in points_of.items()
    ]


def parse(task: str, name: str, points: float, facts: dict) -> Check:
    """One check from its rows of the file."""
    return Check(
        task,
        name,
        str(facts["title"]),
        float(points),
        tuple(facts["needs"]),
        facts.get("visibility", "visible"),
        dict(facts.get("void", {})),
    )


def problem_of(check: Check) -> str:
    """What is wrong with a check, and what to do; "" if nothing is."""
    if check.task not in SCRIPTS:
        return f"there is no task {check.task}; common/tasks.py has {', '.join(SCRIPTS)}"
    unknown = {check.name, *check.needs, *check.void} - set(CHECKS)
    if unknown:
        return f"there is no check {', '.join(sorted(unknown))}; there are {', '.join(CHECKS)}"
    causes = set(check.void.values()) - set(SECTIONS)
    if causes:
        return f"`void` has no cause {', '.join(map(str, causes))}; BY_HEADING in rubric.py has all"
    if check.visibility not in VISIBILITIES:
        return f"visibility {check.visibility!r}: choose one of {', '.join(VISIBILITIES)}"
    if not 0 <= check.points < inf:
        return f"{check.points:g} points: give 0 or more"
    return ""


def settings_of(checks: Iterable[Check], task: str) -> list[str]:
    """The settings that the checks of a task look at, in the order in which they are run."""
    asked = {SETTING_OF.get(check.name, DEFAULT_SETTING) for check in checks if check.task == task}
    table = PRETRAINING_SETTINGS if SCRIPTS[task].pretrains else SETTINGS
    return [name for name in table if name in asked]


@dataclass(frozen=True)
class Allowed:
    """The limit of one measure, and the measurements it comes from."""

    noise: float  # the largest deviation of a right submission of the gallery
    wrong: float  # the smallest of a wrong one, which this measure must find

    @property
    def most(self) -> float:
        """The geometric mean of the two: equally far, in orders of magnitude, from either."""
        return sqrt(max(self.noise, 1e-9) * self.wrong)

    @property
    def text(self) -> str:
        """The limit in words, with the two measurements."""
        return (
            f"{self.most:.1e} (right submissions: at most {self.noise:.1e}; nearest wrong one: "
            f"{self.wrong:.1e})"
        )


def load_tolerances(file: Path = TOLERANCES) -> dict[str, Allowed]:
    """Measure -> Allowed."""
    return {name: Allowed(**facts) for name, facts in json.loads(file.read_text()).items()}
