"""An observed run beside its reference: how far it deviates, where, and from which step on."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

from grading.checks.observation import BOOKKEEPING, Observation
from grading.checks.replayed import comparable
from grading.inputs import Setting

import numpy as np

WRAPPER = re.compile(r"(^|\.)(?:module|_orig_mod)\.")  # what wrappers put into parameters' names

MOVED = 15  # steps at most in which weights are compared: an epoch of any data set, and one more


@dataclass
class Deviation:
    """The largest deviation from the reference, and the first place where it exceeds the limit.

    `worst` and `at` are relative (for losses absolute); `step` (from 1), `rank` and `tensor` name
    that first place, where it was `at`; `step` is None if the limit is kept everywhere.
    """

    worst: float = 0.0
    step: int | None = None
    rank: int = 0
    tensor: str = ""
    at: float = 0.0

    def update(self, off: float, allowed: float, step: int, rank: int, tensor: str):
        """Take one difference into account; `step` counts from 0."""
        self.worst = max(self.worst, float(off))
        first = self.step is None or (self.step == step + 1 and off > self.at)
        if off > allowed and first:
            self.step = step + 1
            self.rank = rank
            self.tensor = tensor
            self.at = float(off)


class Evidence:
    """One task's run in one setting: what was observed, and the reference of the same rows.

    The `reference` is what staff.reference returns. If there is none, `why` is the reason, and
    only what needs none can be checked. `details` gives a step's local gradients, from step 0.
    """

    def __init__(
        self,
        setting: Setting,
        observation: Observation,
        reference: Any = None,
        why: str = "",
        details: Callable[[int], dict] | None = None,
    ):
        self.setting = setting
        self.seen = observation
        self.reference = reference
        self.why = why
        self.details = cache(details or self.given)
        self.ranks = observation.ranks
        self.size = len(observation.ranks)

    def given(self, step: int) -> dict:
        """A step's details, where the reference has them already."""
        names = ("local", "norms", "mean", "by_tensor", "by_value", "local_by_tensor")
        return {name: self.reference[name][step] for name in names if name in self.reference}

    @property
    def steps(self) -> int:
        """How many steps can be compared."""
        steps = comparable(self.seen)
        return steps if self.reference is None else min(steps, len(self.reference["clipped"]))

    @property
    def cut(self) -> bool:
        """Whether the run was killed, or a rank failed: its record may end early."""
        return bool(self.seen.ended.reason or any(self.seen.ended.codes))

    @property
    def same_rows(self) -> bool:
        """Whether there are several ranks, and all read the same rows at every step."""
        steps = range(self.seen.steps)
        rows = [[sorted(rank.steps[step].rows) for step in steps] for rank in self.ranks]
        return len(rows) > 1 and any(rows[0]) and all(one == rows[0] for one in rows)

    @cached_property
    def places(self) -> list[list[int | None]]:
        """By rank: where each tensor of the reference is among the rank's own."""
        return [find_names(rank.names, self.reference["names"]) for rank in self.ranks]

    def of_rank(self, rank: int, array: np.ndarray) -> np.ndarray:
        """A rank's sketches in the reference's order; zeros where it lacks a tensor."""
        rows = [np.zeros(array.shape[1]) if i is None else array[i] for i in self.places[rank]]
        return np.stack(rows)

    def gradient(self, step: int, rank: int) -> np.ndarray:
        """The gradients that a rank updated with (tensors, WIDTH); steps count from 0.

        If each rank updates its part of the weights alone, those of all ranks together.
        """
        steps = [one.steps[step] for one in self.ranks]
        return self.assembled(rank, [s.gradients for s in steps], [s.parts for s in steps])

    def weights(self, step: int, rank: int) -> np.ndarray:
        """A rank's weights after that update; of all ranks together, if each holds its part."""
        after = [one.steps[step].after for one in self.ranks]
        return self.assembled(rank, after, [one.parts for one in self.ranks])

    def first_weights(self, rank: int) -> np.ndarray:
        """The same before the first update."""
        start = [one.start for one in self.ranks]
        return self.assembled(rank, start, [one.parts for one in self.ranks])

    def assembled(self, rank: int, arrays: list, parts: list) -> np.ndarray:
        """A rank's sketches in the reference's order; where all hold parts, the sum of the ranks'.

        `parts` has what each rank holds of each tensor; None for all of it.
        """
        if any(one is None for one in parts):
            return self.of_rank(rank, arrays[rank])
        return np.sum([self.of_rank(r, array) for r, array in enumerate(arrays)], axis=0)

    def start(self) -> Deviation:
        """How far the ranks' first weights are from the checkpoint's."""
        wanted = self.reference["start"]
        pairs = [(0, rank, self.first_weights(rank), wanted) for rank in range(self.size)]
        return self.deviation(pairs, 1e-6)

    def losses(self, allowed: float) -> Deviation | None:
        """How far each rank's losses are from the reference's; None if some were not seen."""
        deviation = Deviation()
        for step in range(self.steps):
            for rank, one in enumerate(self.ranks):
                got = one.steps[step].loss
                if got is None:
                    return None
                wanted = self.reference["loss"][step][rank]
                off = abs(got - wanted) if np.isfinite(got) else np.inf
                deviation.update(off, allowed, step, rank, "")
        return deviation

    def gradients(self, allowed: float) -> Deviation:
        """How far the ranks' gradients are from the reference's, relative to its norm."""
        wanted = self.reference["clipped"]
        pairs = [
            (step, rank, self.gradient(step, rank), wanted[step])
            for step in range(self.steps)
            for rank in range(self.size)
        ]
        return self.deviation(pairs, allowed)

    def updates(self, allowed: float) -> Deviation:
        """How far the weights are from the reference's, relative to how far those have moved.

        In the first steps, before AdamW has enlarged the rounding errors of tiny gradients.
        """
        start, wanted = self.reference["start"], self.reference["weights"]
        pairs = [
            (step, rank, self.weights(step, rank) - start, wanted[step] - start)
            for step in range(min(self.steps, MOVED))
            for rank in range(self.size)
        ]
        return self.deviation(pairs, allowed)

    def between_ranks(self, allowed: float) -> Deviation:
        """How far the ranks' weights are from rank 0's, relative to how far those have moved."""
        deviation = Deviation()
        for step in range(self.seen.steps):
            of_step = [rank.steps[step] for rank in self.ranks]
            if all(one.checksums == of_step[0].checksums for one in of_step):
                continue
            moved = np.linalg.norm(self.ranks[0].start - of_step[0].after)
            for rank, one in enumerate(of_step):
                off = distances(one.after, of_step[0].after) / max(moved, 1e-30)
                tensor = int(off.argmax())
                name = self.ranks[rank].names[tensor]
                deviation.update(off[tensor], allowed, step, rank, name)
        return deviation

    def deviation(self, pairs, allowed: float) -> Deviation:
        """The Deviation of (step, rank, got, wanted), relative to the norm of what is wanted."""
        deviation = Deviation()
        for step, rank, got, wanted in pairs:
            off = distances(got, wanted) / max(np.linalg.norm(wanted), 1e-30)
            tensor = int(off.argmax())
            deviation.update(off[tensor], allowed, step, rank, self.reference["names"][tensor])
        return deviation

    def elements_by_op(self, step: int, rank: int, late: bool = False) -> dict[str, int]:
        """Operation -> elements of gradients' size that a rank passed to it before an update.

        With `late` those between the update and the next forward pass.
        """
        one, found = self.ranks[rank].steps[step], {}
        for facts in one.late if late else one.collectives:
            if facts["elements"] > BOOKKEEPING:
                found[facts["op"]] = found.get(facts["op"], 0) + facts["elements"]
        return found


def distances(got: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """By tensor, the distance between two sketches of shape (tensors, WIDTH); inf for NaN."""
    return np.nan_to_num(np.linalg.norm(got - wanted, axis=1), nan=np.inf)


def find_names(names: list[str], known: list[str]) -> list[int | None]:
    """For every known name, its index in `names`, perhaps with a prefix; None if it is not there.

    A submission may keep its model inside another module: then all names share a prefix. Of a part
    that is wrapped by itself the wrapper's `module` is left out.
    """
    names = [WRAPPER.sub(r"\1", name) for name in names]
    prefixes = {"", *(n[: -len(k)] for n in names for k in known if n.endswith(f".{k}"))}
    prefix = max(prefixes, key=lambda p: sum(f"{p}{k}" in names for k in known))
    return [names.index(f"{prefix}{k}") if f"{prefix}{k}" in names else None for k in known]
