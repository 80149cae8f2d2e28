"""The check of the bytes that a submission reports for an iteration."""

import json
import re

from grading.checks.graded_task import GradedTask
from grading.checks.numbers_in_text import numbers, sources
from grading.checks.observation import BOOKKEEPING
from grading.results import Cause, Outcome, failed, passed

THOUSANDS = re.compile(r"(?<=\d),(?=\d{3}(?!\d))")
UNITS = (1, 1e3, 1024, 1e6, 1024**2)


def traffic(graded: GradedTask) -> Outcome:
    """The bytes of an iteration are reported as the grader measured them."""
    evidence = graded.runs["plain"]
    step = evidence.ranks[0].steps[min(2, evidence.seen.steps - 1)]
    payload = sum(c["bytes"] for c in step.collectives if c["elements"] > BOOKKEEPING)
    size = graded.workers
    measured = {
        "payload": payload,
        "sent_bytes": 2 * (size - 1) / size * payload,
        "expected": 4 * (size - 1) * payload,  # sent and received, by all ranks
    }
    loopback = f"the loopback carried {evidence.seen.ended.loopback:,} bytes in the whole run"
    reported = our_summary(evidence.seen.written)
    if reported:
        for name, wanted in measured.items():
            got = reported.get(name, 0)
            if not abs(got - wanted) <= 0.01 * wanted:  # NaN is not near anything
                return wrong_bytes(f"{name}: {wanted:,.0f}", f"{got:,.0f}", reported, wanted)
        return passed(f"{payload:,} bytes passed to collectives by each rank; {loopback}")
    wanted = matching_bytes(graded, (*measured.values(), measured["expected"] / 2))
    if wanted is not None:
        return passed(f"{wanted:,.0f} bytes in an iteration; {loopback}")
    expected = f"{payload:,} passed to collectives by each rank"
    return wrong_bytes(expected, "no number near it", {}, payload)


def matching_bytes(graded: GradedTask, figures: tuple[float, ...]) -> float | None:
    """The first of the figures that a number in the output matches, in some unit."""
    texts = sources(graded, "plain")
    found = [value for text in texts for value, _ in numbers(THOUSANDS.sub("", text)) if value > 1]
    for wanted in figures:
        if any(abs(value * unit - wanted) <= 0.02 * wanted for unit in UNITS for value in found):
            return wanted
    return None


def our_summary(written: str) -> dict[str, float]:
    """The means per iteration of the handout's traffic.rank0.json, if it exists."""
    for found in re.finditer(r'"per_iteration": (\{[^{}]*\})', written):
        try:
            return {name: float(value) for name, value in json.loads(found.group(1)).items()}
        except (ValueError, TypeError, AttributeError, OverflowError, RecursionError):
            continue
    return {}


def wrong_bytes(expected: str, got: str, reported: dict[str, float], wanted: float) -> Outcome:
    """The outcome of figures that are not those measured."""
    ratios = [value / wanted for value in reported.values() if value]
    near = min(ratios, key=lambda r: abs(r - 1), default=0)
    return failed(
        f"bytes per iteration, {expected}",
        got,
        "the figures in the output, against the collectives that the grader saw",
        Cause(
            "wrong_traffic",
            "the figures are neither the bytes passed to the collectives nor what a ring "
            f"sends of them{f' (nearest: {near:.2f} times)' if near else ''}",
        ),
    )
