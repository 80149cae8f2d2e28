"""Where the data of the workers differ: the first row, found by halving."""

import bisect
import itertools

from common.workers.gathering import gathered

BEFORE, SHOWN = 30, 100  # characters of a row that are shown, before and after the difference


def first_differences(world, splits, tokenizer):
    """A line for each split that differs between workers: the first row that does.

    Every rank calls it at once. Rows are counted from 1.
    """
    lines = []
    for name, rows in splits.items():
        row = first_row(world, name, rows)
        if row is not None:
            texts = gathered(world, f"row {row} of {name}", shown(rows, row, tokenizer))
            lines.append(f"- the first row of {name} that differs is row {row + 1}{two_of(texts)}")
    return lines


def first_row(world, name, rows):
    """The first row of a split in which the workers differ, from 0; None if they do not."""

    def differs(row):
        digest = rows.head(row + 1).digest
        return len(set(gathered(world, f"the first {row + 1} rows of {name}", digest))) > 1

    most = max(gathered(world, f"the length of {name}", len(rows)))
    row = bisect.bisect_left(range(most), True, key=differs)
    return row if row < most else None


def shown(rows, row, tokenizer):
    """A row as text; None where this worker does not have it, "" for one that is not text."""
    if row >= len(rows):
        return None
    if not hasattr(tokenizer, "decode"):
        return ""
    return f"{tokenizer.decode(rows[row]['input_ids'])}, label {rows[row]['labels']:g}"


def two_of(texts):
    """How the rows of rank 0 and of the first rank with another one differ."""
    other = next((rank for rank, text in enumerate(texts) if text != texts[0]), None)
    if other is None:
        return ""
    pair = {0: texts[0], other: texts[other]}
    if None in pair.values():
        missing = next(rank for rank, text in pair.items() if text is None)
        return f", which rank {missing} does not have"
    alike = itertools.takewhile(lambda two: two[0] == two[1], zip(*pair.values(), strict=False))
    start = max(0, len(list(alike)) - BEFORE)
    here = {rank: "..." * (start > 0) + text[start:] for rank, text in pair.items()}
    here = {rank: text[:SHOWN] + "..." * (len(text) > SHOWN) for rank, text in here.items()}
    return ": " + " and ".join(f"{text!r} at rank {rank}" for rank, text in here.items())
