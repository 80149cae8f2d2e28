"""Tables as text."""

from collections.abc import Iterable, Sequence


def markdown_table(heads: Sequence[str], rows: Iterable[Iterable[object]]) -> str:
    """A table in Markdown; a `|` within a cell is escaped, and a line break becomes a space."""
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(map(cell, line))} |" for line in lines)


def cell(value: object) -> str:
    """One cell's text."""
    return " ".join(str(value).replace("|", "\\|").split("\n"))
