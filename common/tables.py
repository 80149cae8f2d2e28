"""Tables as text."""

import re
from collections.abc import Iterable, Sequence


def markdown_table(heads: Sequence[str], rows: Iterable[Iterable[object]]) -> str:
    """A table in Markdown; a `|` within a cell is escaped, and a line break becomes a space."""
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(map(cell, line))} |" for line in lines)


def replace_between(text: str, markers: tuple[str, str], table: str) -> str:
    """A text with `table` between two lines that mark its place; ValueError without them."""
    start, end = markers
    pattern = re.compile(re.escape(start) + r".*?" + re.escape(end), re.DOTALL)
    text, count = pattern.subn(lambda _: f"{start}\n{table}\n\n{end}", text)
    if count != 1:
        raise ValueError(f"the text needs one line `{start}` and one line `{end}` after it")
    return text


def text_table(title: str, heads: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A table for a terminal: a title, right-aligned columns, the first one left-aligned."""
    first = max(len(str(row[0])) for row in rows)
    cells = [["", *heads], *([str(row[0]).ljust(first), *row[1:]] for row in rows)]
    widths = [max(len(str(row[i])) for row in cells) for i in range(len(heads) + 1)]
    lines = [
        "  ".join(str(cell).rjust(width) for cell, width in zip(row, widths, strict=True))
        for row in cells
    ]
    return "\n".join([title, *(f"  {line.rstrip()}" for line in lines), ""])


def cell(value: object) -> str:
    """One cell's text."""
    return " ".join(str(value).replace("|", "\\|").split("\n"))
