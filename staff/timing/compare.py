"""Compares the times of many runs: with task 1 on the same machine, by bootstrap intervals."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any

from common.tasks import COMPARED
from staff.timing.class_runs import Timed

import numpy
from scipy.stats import bootstrap

BASELINE = COMPARED[0].key
LEAST = 40  # iterations
RESAMPLES = 999
MOST_POOLED = 400  # iterations of the baseline to compare with: more cost time and change little


def compare(runs: Sequence[Timed], flat: dict[str, float]) -> list[dict[str, Any]]:
    """A row (dict by timings.COLUMNS) for every run, and why it cannot be compared, if so."""
    usual = {
        field: Counter(getattr(run, field) for run in runs).most_common(1)[0][0]
        for field in ("total_batch", "model", "length")
    }
    alone = defaultdict(list)
    for run in runs:
        if run.task == BASELINE and not flags(run, usual):
            alone[run.machine].append(run)
    return [row(run, usual, alone[run.machine], run.flat or flat.get(run.machine)) for run in runs]


def flags(run: Timed, usual: dict[str, Any]) -> list[str]:
    """Why a run cannot be compared with the usual ones."""
    found = [
        f"{field.replace('_', ' ')} {getattr(run, field)}, not {value}"
        for field, value in usual.items()
        if getattr(run, field) != value
    ]
    if run.steps < LEAST:
        found.append(f"{run.steps} iterations, not {LEAST}")
    if run.iterations_timed >= run.steps:
        found.append("its first iteration is included in its own mean")
    if run.threads > run.cores:
        found.append(f"{run.threads} threads on {run.cores} cores")
    return found


def row(
    run: Timed, usual: dict[str, Any], alone: Sequence[Timed], flat: float | None
) -> dict[str, Any]:
    """One run's row."""
    ratio, low, high = ratio_to(run, alone)
    why = flags(run, usual)
    if run.task != BASELINE and not alone:
        why.append(f"no comparable run of task {BASELINE} on its machine")
    quarters = numpy.percentile(run.seconds, [25, 75])
    return {
        "name": run.name,
        "task": run.task,
        "machine": run.machine,
        "workers": run.workers,
        "iterations": len(run.seconds),
        "median": float(numpy.median(run.seconds)),
        "spread": [float(quarter) for quarter in quarters],
        "ratio": ratio,
        "interval": [low, high],
        "verdict": "baseline" if run.task == BASELINE and not why else verdict(low, high),
        "flat": float(numpy.median(run.sync)) / flat if flat and run.sync.any() else float("nan"),
        "flags": "; ".join(why),
    }


def ratio_to(run: Timed, alone: Sequence[Timed]) -> tuple[float, float, float]:
    """(ratio, low, high) of a run to its machine's runs of the baseline: to its round's, or all."""
    rounds = {one.round: one for one in alone}
    if run.task != BASELINE and run.round in rounds and run.round is not None:
        return ratio_of(run.seconds, rounds[run.round].seconds)
    if run.task != BASELINE and alone:
        pool = numpy.concatenate([one.seconds for one in alone])
        return ratio_of(run.seconds, pool[:: -(-len(pool) // MOST_POOLED)])
    return float("nan"), float("nan"), float("nan")


def ratio_of(*samples: Any) -> tuple[float, float, float]:
    """(ratio, low, high) by bootstrap: of two samples' medians, or the median of one of ratios."""

    def statistic(*samples, axis=-1):
        medians = [numpy.median(sample, axis=axis) for sample in samples]
        return medians[0] / medians[1] if len(medians) == 2 else medians[0]

    point = float(statistic(*samples))
    if any(len(sample) < 2 or numpy.ptp(sample) == 0 for sample in samples):
        return point, float("nan"), float("nan")
    found = bootstrap(
        samples,
        statistic,
        n_resamples=RESAMPLES,
        method="percentile",
        rng=numpy.random.default_rng(1),
    ).confidence_interval
    return point, float(found.low), float(found.high)


def limit(ends: Sequence[float], side: int) -> float:
    """The lower (1) or upper (2) limit of the median of some runs' ends; NaN if none has any."""
    known = [end for end in ends if end == end]
    found = ratio_of(known) if known else (float("nan"),) * 3
    return found[side] if found[side] == found[side] else found[0]


def verdict(low: float, high: float) -> str:
    """What a ratio's interval shows."""
    if not low <= high:  # there is none
        return ""
    return "slower" if low > 1 else "faster" if high < 1 else "indistinguishable"


def by_task(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """A row per task: the median of the comparable runs' ratios, and an interval for it.

    The interval reaches from the lower end for the runs' own lower ends to the upper end for their
    upper ends: runs that are each indistinguishable from task 1 are so together.
    """
    found = []
    for task in sorted({row["task"] for row in rows} - {BASELINE}):
        mine = [row for row in rows if row["task"] == task and not row["flags"]]
        ratios = [row["ratio"] for row in mine]
        if not ratios:
            continue
        low, high = (limit([row["interval"][end] for row in mine], end + 1) for end in (0, 1))
        ratio = float(numpy.median(ratios))
        found.append(
            {
                "task": task,
                "runs": len(ratios),
                "ratio": ratio,
                "interval": [low, high],
                "verdict": verdict(low, high),
            }
        )
    return found
