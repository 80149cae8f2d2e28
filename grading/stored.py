"""The right numbers as they were stored, for copies of the kit without the reference.

They are those of one process that trains on the rows that the handout's sampler deals with --seed
42 (staff/stored.py writes them): losses, norms, and sketches of gradients and weights. With other
rows, or in another order, there is nothing to compare with.
"""

import hashlib
from collections.abc import Callable
from pathlib import Path

from grading.checks.evidence import find_names
from grading.checks.observation import Observation
from grading.checks.replayed import comparable
from grading.inputs import MODEL

import numpy as np

FILE = Path(__file__).with_name("stored.npz")
ARRAYS = ("rows", "loss", "norm", "clipped", "moved")  # of a run, each by step


def digest(seen: Observation, step: int) -> int:
    """Which rows the ranks together read for an update, as a number."""
    ids = sorted(row[0] for rank in seen.ranks for row in rank.steps[step].rows)
    return int.from_bytes(hashlib.sha256(repr(ids).encode()).digest()[:6], "big")


def prefix_of(model: str) -> str:
    """What the names of a model's arrays begin with."""
    return "" if model == MODEL else f"{model}-"


def reference(
    setting: str, seen: Observation, model: str = MODEL
) -> tuple[dict, Callable[[int], dict]]:
    """(reference, details) of a run in a setting, as grading.checks.evidence.Evidence takes them.

    They end at the first step whose rows are not those that were stored. Raises ValueError if that
    is the first of all.
    """
    stored, prefix = np.load(FILE), prefix_of(model)
    rows = [digest(seen, step) for step in range(comparable(seen))]
    names = [name for name in stored.files if name.startswith(f"{prefix}{setting}-")]
    runs = {name.partition("/")[0] for name in names}
    steps, run = max((equal_until(rows, stored[f"{run}/rows"]), run) for run in sorted(runs))
    if not steps:
        raise ValueError(
            "the rows of the first step are not those that DistributedSampler deals with --seed "
            "42, so there are no stored numbers to compare with; graders have the reference"
        )
    _, loss, norm, clipped, moved = (stored[f"{run}/{name}"][:steps] for name in ARRAYS)
    found = {
        "names": stored[f"{prefix}names"].tolist(),
        "sizes": stored[f"{prefix}sizes"].tolist(),
        "start": stored[f"{prefix}start"],
        "loss": [losses_of_ranks(seen, step, loss[step]) for step in range(steps)],
        "norm": norm,
        "clipped": clipped,
        "weights": stored[f"{prefix}start"] + moved,
    }
    return found, lambda step: own_gradients(seen, step, found)


def equal_until(rows: list[int], stored: np.ndarray) -> int:
    """How many steps from the first read the rows that were stored."""
    pairs = zip(rows, stored.tolist(), strict=False)
    return next((at for at, (a, b) in enumerate(pairs) if a != b), min(len(rows), len(stored)))


def losses_of_ranks(seen: Observation, step: int, mean: float) -> list[float]:
    """The ranks' own losses, moved by what their mean is off: only that mean is known."""
    losses = [rank.steps[step].loss for rank in seen.ranks]
    if any(one is None for one in losses):
        return [mean] * len(losses)
    values = np.array(losses, float)
    return (values + mean - values @ seen.shares(step)).tolist()


def own_gradients(seen: Observation, step: int, found: dict) -> dict:
    """Each rank's gradients before they were averaged, as the probe saw them arrive."""
    of_ranks = []
    for rank in seen.ranks:
        one = rank.steps[step]
        if one.local is None or not one.local.any():  # not logged: only a scale can be told
            return {"local": [found["clipped"][step]], "norms": [found["norm"][step]]}
        places = find_names(rank.names, found["names"])
        of_ranks.append([one.local[at] if at is not None else one.local[0] * 0 for at in places])
    local = np.array(of_ranks)
    norms = [rank.steps[step].local_norm for rank in seen.ranks]
    return {"local": local, "norms": norms, "mean": np.tensordot(seen.shares(step), local, 1)}
