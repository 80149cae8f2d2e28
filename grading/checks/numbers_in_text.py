"""The numbers in what a submission prints or writes; the format does not matter."""

import re
from collections.abc import Collection, Iterator
from math import inf, isfinite

from grading.checks.graded_task import GradedTask

# Bounded, so that no text takes long; what is longer, such as a commit's 4e7281934, is no number.
NUMBER = re.compile(r"(?<![\w.])[-+]?\d{1,30}(?:\.\d{1,30})?(?:[eE][-+]?\d{1,3})?(?!\d)")
MOST_OTHERS = {True: 10, False: 20}  # by value: of numbers with two decimals, and with more
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


def among_few(
    values: list[float], text: str, slack: float = 2e-6, benign: Collection[float] = ()
) -> bool:
    """Whether the values are in the text in order, with few others like them in between.

    A list of all numbers that there may be has them, too. Others are as long as the values, in
    their range, and none of the `benign`. Of numbers with two decimals fewer are allowed: there
    are fewer.
    """
    margin = max(max(values) - min(values), 0.3 * max(map(abs, values)))
    low, high = min(values) - margin, max(values) + margin
    for coarse, most in MOST_OTHERS.items():
        others = [0.0] + [inf] * len(values)  # since the first value, up to each value's place
        for value, half in numbers(text):
            exact = 0.04 < half < 0.051 and any(abs(value - one) < 1e-9 for one in values)
            if not low <= value <= high or ((half > 0.004 * high) is not coarse and not exact):
                continue
            found = [at for at, one in enumerate(values, 1) if abs(value - one) <= half + slack]
            if not found and not any(abs(value - one) <= half + slack for one in benign):
                others[1:] = [count + 1 for count in others[1:]]
            for at in reversed(found):
                others[at] = min(others[at], others[at - 1])
        if others[-1] <= most * len(values):
            return True
    return False


def sources(graded: GradedTask, setting: str) -> list[str]:
    """What rank 0 printed, and what the run wrote, without progress bars."""
    evidence = graded.runs[setting]
    texts = (evidence.ranks[0].out, evidence.ranks[0].err, evidence.seen.written)
    return [BAR.sub("\n", text) for text in texts]
