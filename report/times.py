"""Times of the iterations that the assignment asks for, the first of them discarded."""

import statistics

from common.record.format import PHASES
from report.runs import Run

ITERATIONS = 40


def timed(run: Run) -> dict[str, float]:
    """Mean milliseconds of the phases over iterations 2 to 40 and all ranks; empty without any."""
    lines = [line for rank in run.steps for line in rank[1:ITERATIONS]]
    if not lines:
        return {}
    return {
        phase: 1000 * sum(line["seconds"][phase] for line in lines) / len(lines)
        for phase in (*PHASES, "total")
    }


def spread(run: Run) -> tuple[str, ...]:
    """Mean, standard deviation and quartiles of the iterations (means of the workers), as text.

    In milliseconds, with the number of iterations and of workers.
    """
    times = [
        1000 * statistics.mean(line["seconds"]["total"] for line in step)
        for step in zip(*(rank[1:ITERATIONS] for rank in run.steps), strict=True)
    ]
    deviation, middle = "-", "-"
    if len(times) > 1:
        low, _, high = statistics.quantiles(times, n=4, method="inclusive")
        deviation, middle = f"{statistics.stdev(times):.1f}", f"{low:.1f} to {high:.1f}"
    mean = f"{statistics.mean(times):.1f}"
    return mean, deviation, middle, str(len(times)), str(len(run.steps))
