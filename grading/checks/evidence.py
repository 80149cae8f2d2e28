"""An observed run beside its reference: how far apart they are, where, and from which step on."""

from dataclasses import dataclass
from functools import cached_property

from grading.checks.observation import BOOKKEEPING, Observation

import numpy as np

COMPARED = 15  # steps: an epoch of either data set, and one more


@dataclass
class Apart:
    """How far two things are apart at most, and the first place where it is more than allowed.

    `worst` is relative (for losses absolute); `step` (from 1), `rank` and `tensor` name that first
    place, and are None where all is well.
    """

    worst: float = 0.0
    step: int | None = None
    rank: int | None = None
    tensor: str = ""
    at: float = 0.0


class Evidence:
    """One task's run in one setting: what was observed, and the reference of the same rows.

    Without a `reference`, for the reason `why`, only what needs none can be told.
    """

    def __init__(self, setting, observation: Observation, reference=None, why=""):
        self.setting, self.seen, self.reference, self.why = setting, observation, reference, why
        self.ranks, self.size = observation.ranks, len(observation.ranks)

    @property
    def steps(self):
        """How many steps can be compared."""
        return comparable(self.seen)

    @cached_property
    def places(self):
        """By rank: where each tensor of the reference is among the rank's own."""
        return [place(rank.names, self.reference["names"]) for rank in self.ranks]

    def of_rank(self, rank, array):
        """A rank's sketches in the reference's order; zeros where it lacks a tensor."""
        rows = [np.zeros(array.shape[1]) if i is None else array[i] for i in self.places[rank]]
        return np.stack(rows)

    def gradient(self, step, rank):
        """The gradients with which a rank made its update (tensors, WIDTH); steps count from 0."""
        return self.of_rank(rank, self.ranks[rank].steps[step].gradients)

    def weights(self, step, rank):
        """A rank's weights after that update."""
        return self.of_rank(rank, self.ranks[rank].steps[step].after)

    def start(self):
        """How far the ranks' first weights are from the checkpoint's."""
        wanted = self.reference["start"]
        pairs = [(0, r, self.of_rank(r, one.start), wanted) for r, one in enumerate(self.ranks)]
        return self.apart(pairs, 1e-6)

    def losses(self, allowed):
        """How far each rank's losses are from the reference's, in absolute numbers."""
        worst = Apart()
        for step in range(self.steps):
            for rank, one in enumerate(self.ranks):
                got, wanted = one.steps[step].loss, self.reference["loss"][step][rank]
                if got is None:
                    return None
                off = abs(got - wanted) if np.isfinite(got) else np.inf
                note(worst, off, allowed, step, rank, "")
        return worst

    def gradients(self, allowed):
        """How far the ranks' gradients are from the reference's, relative to its norm."""
        wanted = self.reference["clipped"]
        pairs = [
            (step, rank, self.gradient(step, rank), wanted[step])
            for step in range(self.steps)
            for rank in range(self.size)
        ]
        return self.apart(pairs, allowed)

    def updates(self, allowed):
        """How far the weights have gone elsewhere than the reference's, relative to its way."""
        start, wanted = self.reference["start"], self.reference["weights"]
        pairs = [
            (step, rank, self.weights(step, rank) - start, wanted[step] - start)
            for step in range(self.steps)
            for rank in range(self.size)
        ]
        return self.apart(pairs, allowed)

    def between_ranks(self, allowed):
        """How far the ranks' weights are from rank 0's, relative to how far they have gone."""
        worst = Apart()
        for step in range(self.seen.steps):
            of_step = [rank.steps[step] for rank in self.ranks]
            if all(one.sums == of_step[0].sums for one in of_step):
                continue
            way = self.ranks[0].start - of_step[0].after
            for rank, one in enumerate(of_step):
                off = distances(one.after, of_step[0].after) / max(np.linalg.norm(way), 1e-30)
                tensor = int(off.argmax())
                note(worst, off[tensor], allowed, step, rank, self.ranks[rank].names[tensor])
        return worst

    def apart(self, pairs, allowed):
        """Apart, of (step, rank, got, wanted)."""
        worst = Apart()
        for step, rank, got, wanted in pairs:
            off = distances(got, wanted) / max(np.linalg.norm(wanted), 1e-30)
            tensor = int(off.argmax())
            note(worst, off[tensor], allowed, step, rank, self.reference["names"][tensor])
        return worst

    def moved(self, step, rank, late=False):
        """Operation -> elements of gradients' size that a rank handed over around an update."""
        one, moved = self.ranks[rank].steps[step], {}
        for facts in one.late if late else one.collectives:
            if facts["elements"] > BOOKKEEPING:
                moved[facts["op"]] = moved.get(facts["op"], 0) + facts["elements"]
        return moved


def distances(got, wanted):
    """By tensor, the distance between two sketches of shape (tensors, WIDTH); inf for NaN."""
    return np.nan_to_num(np.linalg.norm(got - wanted, axis=1), nan=np.inf)


def note(worst, off, allowed, step, rank, tensor):
    """Take a distance into account, and its place if it is the first that is too large."""
    worst.worst = max(worst.worst, float(off))
    if off > allowed and (worst.step is None or (worst.step == step + 1 and off > worst.at)):
        worst.step, worst.rank, worst.tensor, worst.at = step + 1, rank, tensor, float(off)


def comparable(seen):
    """How many steps have one right answer: until ranks read different numbers of rows.

    There the mean over ranks is not the mean over rows, and either may be meant.
    """
    steps = min(seen.steps, COMPARED)
    counts = [{len(rank.steps[step].rows) for rank in seen.ranks} for step in range(steps)]
    return next((step for step, count in enumerate(counts) if len(count) > 1), steps)


def rows_read(observation, steps, answers):
    """For the reference: for each step and rank the rows that it read, as a batch.

    `answers` are the labels by token ids, for models that are not given them. Raises ValueError
    for rows that are not in the data.
    """

    def labelled(row):
        ids, types, label = row
        if label < 0 and ids not in answers:
            raise ValueError("a row that the model read is not in the data: its label is unknown")
        return ids, types, label if label >= 0 else answers[ids]

    return [
        [batch_of([labelled(row) for row in rank.steps[step].rows]) for rank in observation.ranks]
        for step in range(steps)
    ]


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
