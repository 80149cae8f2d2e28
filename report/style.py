"""How figures look and are saved: readable in gray and for color-blind readers, with a source."""

from pathlib import Path
from types import ModuleType
from typing import Any

# Okabe and Ito's colors, distinct for color-blind readers; hatches and lines are so in gray, too
COLORS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00")
HATCHES = ("", "//", "..", "xx", "\\\\")
LINES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)))
MARKS = "osD^v<>"


def pyplot() -> ModuleType:
    """matplotlib's pyplot, set up to draw without a screen."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot


def save(figure: Any, name: str, source: str, folder: Path) -> list[Path]:
    """Write a figure, if there is one, as PNG and SVG, with its source above; returns the files."""
    if figure is None:
        return []
    figure.suptitle(source, fontsize=8)
    paths = [folder / f"{name}.{suffix}" for suffix in ("png", "svg")]
    for path in paths:
        figure.savefig(path, dpi=120)
    pyplot().close(figure)
    return paths
