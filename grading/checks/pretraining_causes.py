"""Why task 8's gradients are wrong: which combination of the micro-batches' losses they are of."""

from grading.checks.evidence import Evidence
from grading.checks.observation import BOOKKEEPING
from grading.results import Cause

import numpy as np

CLOSE = 0.02  # of the largest coefficient, or of the gradients' norm


def explain_pretraining(evidence: Evidence, step: int) -> Cause:
    """The Cause of gradients that are wrong at a step (from 0)."""
    parts = evidence.details(step)
    masked, rows, size = parts["masked"], parts["rows"], evidence.size
    right = np.array([masked / masked.sum(), rows / rows.sum()])
    fits = [fit(evidence, step, rank, parts) for rank in range(size)]
    if not all(np.isfinite(found).all() for found, _ in fits):
        return Cause("", "some gradients are not finite")
    if any(rest > CLOSE for _, rest in fits):
        return Cause("", "no known combination of the micro-batches' losses has these gradients")
    coefficients = [found for found, _ in fits]
    own = [of_rank(right, rank, size) for rank in range(size)]
    if size > 1 and all(
        gap(found, each) <= CLOSE for found, each in zip(coefficients, own, strict=True)
    ):
        return Cause("no_sync", "every rank updates with its own gradients: average them first")
    if not all(alike(found, coefficients[0]) for found in coefficients):
        text = "each rank has other gradients: average after the last of its backward passes"
        return Cause("averaged_too_early" if reduced_early(evidence, step) else "mixed", text)
    return by_weights(coefficients[0], masked, rows, size)


def fit(evidence: Evidence, step: int, rank: int, parts: dict) -> tuple[np.ndarray, float]:
    """(coefficients of both losses of each micro-batch: (2, batches), share left unexplained)."""
    basis = np.concatenate([parts["mlm"], parts["nsp"]])
    basis = basis.reshape(len(basis), -1).T
    got = evidence.gradient(step, rank).reshape(-1)
    if not np.isfinite(got).all():
        return np.full((2, len(parts["rows"])), np.nan), np.inf
    found = np.linalg.lstsq(basis, got, rcond=1e-6)[0]
    rest = np.linalg.norm(got - basis @ found) / max(np.linalg.norm(got), 1e-30)
    return found.reshape(2, -1), rest


def of_rank(right: np.ndarray, rank: int, size: int) -> np.ndarray:
    """The coefficients with all but a rank's micro-batches left out."""
    kept = np.repeat(np.arange(size), right.shape[1] // size) == rank
    return right * kept


def alike(found: np.ndarray, expected: np.ndarray) -> bool:
    """Whether coefficients are those expected."""
    return bool(np.abs(found - expected).max() <= CLOSE * np.abs(expected).max())


def gap(found: np.ndarray, expected: np.ndarray) -> float:
    """How far coefficients are from those expected, whatever they are scaled by."""
    wanted = expected * (found * expected).sum() / (expected * expected).sum()
    return float(np.abs(found - wanted).max() / max(np.abs(wanted).max(), 1e-30))


def by_weights(found: np.ndarray, masked: np.ndarray, rows: np.ndarray, size: int) -> Cause:
    """The Cause that the coefficients of all micro-batches show, which all ranks share."""
    micro = len(rows) // size
    words, pairs = masked / masked.sum(), rows / rows.sum()
    of_ranks = masked / masked.reshape(size, -1).sum(1).repeat(micro) / size
    for number, what in enumerate(("masked words", "pairs")):
        if np.abs(found[number]).max() < CLOSE * np.abs(found).max():
            text = f"the loss of the {what} has no part in the gradients"
            return Cause("loss_left_out", text)
    known = {
        "right": (words, pairs),
        "one weight": (words, words),
        "micro-batches'": (pairs, pairs),
        "ranks'": (of_ranks, pairs),
    }
    gaps = {name: gap(found, np.array(each)) for name, each in known.items()}
    nearest = min(gaps, key=gaps.__getitem__)
    if gaps[nearest] <= CLOSE and nearest == "right":
        return scaled(found.sum() / 2, size, micro)
    if gaps[nearest] <= CLOSE and nearest == "one weight":
        return Cause(
            "one_weight",
            "both losses count by the masked words: the pairs' counts by rows, and has its own "
            "weight",
        )
    if gaps[nearest] <= CLOSE:
        return Cause(
            "mean_of_means",
            f"the gradients are of the mean of the {nearest} means, which have "
            f"{', '.join(f'{n:.0f}' for n in masked)} masked words: weigh each by its words "
            "among those of all micro-batches and ranks",
        )
    silent = np.abs(found).max(0) < CLOSE * np.abs(found).max()
    if silent.any():
        return Cause("rank_left_out", f"{silent.sum()} of {len(silent)} micro-batches are left out")
    text = "; ".join(" ".join(f"{number:.3g}" for number in row) for row in found)
    return Cause("mixed", f"the micro-batches' weights, of words and of pairs, are {text}")


def scaled(scale: float, size: int, micro: int) -> Cause:
    """The Cause of gradients that are the right ones times a factor."""
    known = (
        (size, "summed", "summed, not divided by the world size"),
        (1 / size, "divided_twice", "divided by the world size twice"),
        (micro, "accumulation_unscaled", "each micro-batch counts as a whole batch"),
    )
    for factor, name, why in known:
        if abs(scale - factor) < CLOSE * factor:
            return Cause(name, f"the gradients are {scale:.3g} times the reference: {why}")
    return Cause("scaled", f"the gradients are {scale:.3g} times the reference on every rank")


def reduced_early(evidence: Evidence, step: int) -> bool:
    """Whether all collectives of gradients came before the last backward pass."""
    one = evidence.ranks[0].steps[step]
    calls = [call for call in one.collectives if call["elements"] > BOOKKEEPING]
    return bool(calls) and all(call["passes"] < len(one.forwards) for call in calls)
