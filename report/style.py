"""How figures look and are saved: readable in print, in gray and for color-blind readers."""

import textwrap
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

# Okabe and Ito's colors, distinct for color-blind readers; hatches and lines are so in gray, too
COLORS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00")
HATCHES = ("", "//", "..", "xx", "\\\\")
LINES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)))
MARKS = "osD^v<>"
WIDTH = 6.3  # inches, as drawn and as printed: it fits A4 and US letter
FONT = "STIXGeneral"  # comes with matplotlib, so the report's text can have it, too
SMALL = 8.0  # points
LOOKS: Any = {
    "font.family": FONT,
    "mathtext.fontset": "stix",
    "font.size": 9,
    "axes.titlesize": 9,
    "legend.fontsize": SMALL,
    "xtick.labelsize": SMALL,
    "ytick.labelsize": SMALL,
}


def pyplot() -> ModuleType:
    """matplotlib's pyplot, set up to draw without a screen."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    pyplot.rcParams.update(LOOKS)
    return pyplot


def font_folder() -> Path:
    """Where the files of FONT are."""
    import matplotlib

    return Path(matplotlib.get_data_path()) / "fonts" / "ttf"


def label_ticks(axis: Any, places: Sequence[float], names: Sequence[str]) -> None:
    """Name places on the x-axis; the names slant where they would touch."""
    axis.set_xticks(places, names)
    spec = axis.get_subplotspec()
    columns = spec.get_gridspec().ncols / len(spec.colspan)
    room = 72 * (axis.figure.get_figwidth() / columns - 0.8) / max(1, len(names))
    longest = max((len(line) for name in names for line in name.split("\n")), default=0)
    if room < 0.6 * SMALL * longest:
        slanted = [name.replace("\n", ", ") for name in names]
        axis.set_xticks(places, slanted, rotation=40, ha="right", rotation_mode="anchor")


def label_logarithmic(axis: Any) -> None:
    """Label a logarithmic x- or y-axis with numbers that have no small exponents."""
    from matplotlib.ticker import LogLocator

    axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.set_major_formatter("{x:g}")
    axis.set_minor_formatter("")


def save(figure: Any, name: str, source: str, folder: Path) -> list[Path]:
    """Write a figure, if there is one, as PNG and SVG, with its source above; returns the files."""
    if figure is None:
        return []
    lines = [textwrap.fill(line, 120) for line in source.split("\n")]
    figure.suptitle("\n".join(lines), fontsize=7)
    paths = [folder / f"{name}.{suffix}" for suffix in ("png", "svg")]
    for path in paths:
        figure.savefig(path, dpi=160)
    pyplot().close(figure)
    return paths
