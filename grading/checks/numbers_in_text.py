"""The numbers in what a submission prints or writes; the format does not matter."""

import re
from collections.abc import Iterator

from grading.checks.graded_task import GradedTask

NUMBER = re.compile(r"(?<![\w.])[-+]?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?")
BAR = re.compile(r"\d+%\|[^\r\n]*?\]")  # tqdm's; a log's line may follow it


def numbers(text: str) -> Iterator[tuple[float, float]]:
    """(value, half of its last printed digit) of each number in a text."""
    for found in NUMBER.finditer(text):
        digits = found.group()
        mantissa, _, power = digits.lower().partition("e")
        places = len(mantissa.partition(".")[2])
        yield float(digits), 0.5 * 10.0 ** (int(power or 0) - places)


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
