"""What the reference replays: the steps that can be compared, and the rows read in them."""

from grading.checks.observation import Observation

import numpy as np

COMPARED = 15  # steps at most: an epoch of either data set, and one more


def comparable(seen: Observation) -> int:
    """How many steps have one right answer: those before ranks read different numbers of rows.

    From there on the mean over ranks is not the mean over rows, and either may be meant.
    """
    steps = min(seen.steps, COMPARED)
    counts = [{len(rank.steps[step].rows) for rank in seen.ranks} for step in range(steps)]
    return next((step for step, count in enumerate(counts) if len(count) > 1), steps)


def rows_read(observation: Observation, steps: int, answers: dict) -> list[list[dict]]:
    """For the reference: for each step and rank the rows that it read, as a batch.

    `answers` are the labels by token ids, for models that are not given them. Raises ValueError
    for rows that are not in the data.
    """

    def labeled(row):
        ids, types, label = row
        if label < 0 and ids not in answers:
            raise ValueError("a row that the model read is not in the data: its label is unknown")
        return ids, types, label if label >= 0 else answers[ids]

    return [
        [batch_of([labeled(row) for row in rank.steps[step].rows]) for rank in observation.ranks]
        for step in range(steps)
    ]


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
