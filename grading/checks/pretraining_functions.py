"""Checks of task 8's functions by themselves: LAMB and the decay, on given numbers."""

import json
from pathlib import Path

from grading.checks.graded_task import GradedTask
from grading.checks.pretraining_updates import EXACT, is_off
from grading.results import Cause, Outcome, failed, not_run, passed

import numpy as np

STORED = Path(__file__).parents[1] / "stored_lamb.json"


def lamb(graded: GradedTask) -> Outcome:
    """LAMB's updates of given weights are the stored ones, with bounds and norms of 0."""
    found = graded.functions
    if found is None or "error" in found:
        return function_failed(found)
    stored = json.loads(STORED.read_text())["lamb"]
    wrong, worst = {}, 0.0
    for (bounds, name, got), (*_, ratios, wanted) in zip(found["lamb"], stored, strict=True):
        expected, weights = np.array(wanted), np.array(got, float)
        away = np.abs(weights - expected[1:]) / (1 + np.abs(expected[1:]))
        if not away.max() <= EXACT:
            wrong[bounds, name] = implied(weights[0], expected, ratios[0])
        worst = max(worst, away.max())
    if not wrong:
        return passed(f"within {worst:.1e}")
    (bounds, name), *_ = wrong
    where = f"weight: {name}, bounds of the trust ratio: {bounds}"
    text = f"{len(wrong)} of {len(stored)} weights are others"
    return failed("LAMB's updates, to 1e-6", text, where, explain_lamb(wrong))


def implied(got: np.ndarray, expected: np.ndarray, ratio: float) -> tuple[float, float]:
    """(the trust ratio that a first update shows, the right one); NaN where it points elsewhere."""
    moved, wanted = got - expected[0], expected[1] - expected[0]
    if not np.isfinite(moved).all() or not wanted.any():
        return np.nan, ratio
    factor = moved @ wanted / (wanted @ wanted)
    same = np.linalg.norm(moved - factor * wanted) <= 1e-3 * np.linalg.norm(moved)
    return (factor * ratio if same else np.nan), ratio


def explain_lamb(wrong: dict[tuple[str, str], tuple[float, float]]) -> Cause:
    """The Cause of wrong updates, by bounds and weight: the trust ratios found, and right ones."""
    if all(name.startswith("zero") for _, name in wrong):
        text = "where the norm of the weight or of its update is 0 the trust ratio is 1"
        return Cause("lamb_zero_norm", text)
    if all(bounds == "narrow" for bounds, _ in wrong):
        text = "the trust ratio is to be kept within min_coeff and max_coeff"
        return Cause("lamb_unbounded", text)
    of_wide = {name: pair for (bounds, name), pair in wrong.items() if bounds == "wide"}
    ratios = [pair for name, pair in of_wide.items() if not name.startswith("zero")]
    if any(np.isnan(got) for got, _ in ratios):
        text = "the updates point elsewhere: check the moments, their correction and the decay"
        return Cause("lamb_moments", text)
    if all(abs(got - right) < 1e-3 * right for got, right in ratios):
        text = "the first update is right, and a later one is not: check the moments' correction"
        return Cause("lamb_moments", text)
    if all(abs(got - 1) < 1e-3 for got, _ in ratios):
        return Cause("lamb_no_ratio", "the updates are Adam's: multiply each by its trust ratio")
    if all(abs(got * right - 1) < 1e-3 for got, right in ratios):
        text = "the trust ratio is upside down: the weight's norm divided by that of its update"
        return Cause("lamb_inverted", text)
    if np.ptp([got for got, _ in ratios]) < 1e-3 * max(got for got, _ in ratios):
        text = "all weights have the same trust ratio: take the norms of each weight by itself"
        return Cause("lamb_one_norm", text)
    shown = ", ".join(f"{got:.3g} (not {right:.3g})" for got, right in ratios)
    return Cause("lamb_wrong", f"the trust ratios are {shown}")


def decay(graded: GradedTask) -> Outcome:
    """The exponential decay has the stored factors, with a warm-up and without one."""
    found = graded.functions
    if found is None or "error" in found:
        return function_failed(found)
    stored = json.loads(STORED.read_text())
    for (_, got), (warmup, wanted) in zip(found["factors"], stored["factors"], strict=True):
        for step, one, right in zip(stored["steps"], got, wanted, strict=True):
            if is_off(one, right):
                text = "without a warm-up it decays from the first update on"
                if warmup:
                    text = "a straight line to 1, and from its end on decay_rate each decay_step"
                where = f"update {step + 1}, with a warm-up of {warmup}"
                cause = Cause("wrong_rate", text)
                return failed(f"{right:.6g} of the learning rate", f"{one:.6g}", where, cause)
    return passed("right with and without a warm-up")


def function_failed(found: dict | None) -> Outcome:
    """The Outcome where the submission's functions could not be called, or were not."""
    if found is None:
        return not_run("not run because the functions were not called in this setting")
    line = found["error"]
    name = "todo" if "TODO(" in line else "crashed"
    where = "common.models.lamb.Lamb and common.models.schedules.warmup_linear_decay_exp"
    return failed("functions that can be called", "an error", where, Cause(name, line))
