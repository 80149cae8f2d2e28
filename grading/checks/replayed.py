"""What the reference replays: the steps that can be compared, and the rows read in them."""

from grading.checks.observation import Observation
from grading.known_rows import Known

import numpy as np

COMPARED = 100  # steps at most; the settings' have fewer


def comparable(seen: Observation) -> int:
    """How many steps have one right answer: those before ranks read different numbers of rows.

    From there on the mean over ranks is not the mean over rows, and either may be meant; unless the
    task asks for the latter.
    """
    steps = min(seen.steps, COMPARED)
    if seen.weighted:
        return steps
    counts = [{len(rank.steps[step].rows) for rank in seen.ranks} for step in range(steps)]
    return next((step for step, count in enumerate(counts) if len(count) > 1), steps)


def rows_read(observation: Observation, steps: int, known: dict[str, Known]) -> list[list[dict]]:
    """For the reference: for each step and rank the rows that it read, as a batch.

    Of rows in the data the batch has what their texts give, whatever the model was given besides
    the token ids. Raises ValueError for other rows without a label.
    """
    rows_of = known["dev"] | known["train"]

    def as_it_should_be(row):
        ids, types, label = row
        if ids in rows_of:
            right = rows_of[ids]
            return right.ids, right.types, right.label
        if label < 0:
            raise ValueError("a row that the model read is not in the data: its label is unknown")
        return ids, types, label

    def batch_read(rank, step):
        return batch_of([as_it_should_be(row) for row in rank.steps[step].rows])

    return [[batch_read(rank, step) for rank in observation.ranks] for step in range(steps)]


def batch_of(rows) -> dict[str, np.ndarray]:
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
