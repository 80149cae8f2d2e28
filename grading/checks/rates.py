"""The optimizer's learning rates: a straight line to 0, the same on all ranks."""

import itertools
from collections.abc import Collection, Sequence

from grading.checks.evidence import Evidence
from grading.checks.graded_task import GradedTask
from grading.results import Cause

import numpy as np


def explain_ranks_rates(evidence: Evidence) -> Cause | None:
    """A Cause if the ranks' learning rates differ; else None."""
    for step in range(evidence.seen.steps):
        first, *others = [rank.steps[step].rate for rank in evidence.ranks]
        for rank, rate in enumerate(others, 1):
            if abs(rate - first) > 1e-6 * first:
                return Cause(
                    "rates_differ",
                    f"at step {step + 1} the learning rate of rank {rank} is {rate:.3g}, and that "
                    f"of rank 0 is {first:.3g}: all ranks need the same optimizer and schedule",
                )
    return None


def planned_steps(graded: GradedTask, evidence: Evidence) -> set[int]:
    """How many steps a run may have: with and without a last batch that is not full."""
    batch = graded.batches.get(evidence.size, graded.batch)
    full, rest = divmod(graded.rows(evidence.setting.name), batch * evidence.size)
    epochs = evidence.setting.epochs
    return {epochs * full, epochs * (full + bool(rest))}


def explain_rates(
    rates: Sequence[float], first: float, planned: Collection[int] = ()
) -> Cause | None:
    """A Cause if the learning rates do not fall linearly from `first` to 0; else None.

    A run that was cut was to have one of the `planned` numbers of steps.
    """
    steps = np.arange(len(rates))
    shifts = (0, 1)  # scheduler.step() after or, as in 2019, before optimizer.step()
    for total, shift in itertools.product(planned or {len(rates)}, shifts):
        line = first * (1 - (steps + shift) / total)
        if np.abs(np.array(rates) - line).max() <= 0.02 * first:
            return None
    if max(rates) - min(rates) < 1e-3 * first:
        return Cause("unscheduled", "the learning rate does not change: call scheduler.step()")
    if 0 < np.count_nonzero(np.abs(np.diff(rates)) > 1e-3 * first) <= len(rates) / 8:
        return Cause(
            "rate_per_epoch",
            "the learning rate changes only now and then: call scheduler.step() after every "
            "update, not after every epoch",
        )
    if abs(rates[0] - first) > 0.02 * first:
        text = f"the first learning rate is {rates[0]:.3g}: --learning_rate, with no warm-up"
        return Cause("wrong_rate", text)
    return Cause(
        "wrong_rate", "the schedule has another length, or steps more than once per update"
    )
