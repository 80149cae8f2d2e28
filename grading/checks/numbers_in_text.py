"""The numbers in what a submission prints or writes; the format does not matter."""

import re
from collections.abc import Iterator
from math import isfinite

from grading.checks.graded_task import GradedTask

# Bounded, so that no text takes long; what is longer, such as a commit's 4e7281934, is no number.
NUMBER = re.compile(r"(?<![\w.])[-+]?\d{1,30}(?:\.\d{1,30})?(?:[eE][-+]?\d{1,3})?(?!\d)")
BAR = re.compile(r"(?<!\d)\d{1,3}%\|[^\r\n\]]{0,300}\]")  # tqdm's; a log's line may follow it


def numbers(text: str) -> Iterator[tuple[float, float]]:
    """(value, half of its last printed digit) of each number in a text."""
    for found in NUMBER.finditer(text):
        digits = found.group()
        mantissa, _, power = digits.lower().partition("e")
        places = len(mantissa.partition(".")[2])
        value, half = float(digits), float(f"0.5e{int(power or 0) - places}")
        if isfinite(value) and isfinite(half):
            yield value, half


def in_order(values: list[float], text: str, slack: float = 2e-6, coarsest: float = 0.005) -> int:
    """How many of the values are in the text, in this order, within their printed rounding.

    A number rounded by more than `coarsest` only counts if it is the value, with one decimal.
    """
    found = 0
    for value, half in numbers(text):
        if found == len(values):
            break
        off = abs(value - values[found])
        exact = half < 0.051 and off < 1e-9
        if exact or (half <= coarsest * 1.001 and off <= half + slack):
            found += 1
    return found


def sources(graded: GradedTask, setting: str) -> list[str]:
    """What rank 0 printed, and what the run wrote, without progress bars."""
    evidence = graded.runs[setting]
    texts = (evidence.ranks[0].out, evidence.ranks[0].err, evidence.seen.written)
    return [BAR.sub("\n", text) for text in texts]
