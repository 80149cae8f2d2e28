"""Draws the pictures of the assignment's sheet and of the slides, with every letter as a path.

python -m staff.sheet.pictures            # writes docs/pictures/*.svg
"""

import sys
from collections.abc import Callable
from pathlib import Path

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.patches import FancyBboxPatch

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "pictures"
BLUE, ORANGE, GREEN, PINK, GRAY = "#cfe2f3", "#fce5cd", "#d9ead3", "#f4cccc", "#eeeeee"
SHADES = (BLUE, ORANGE, GREEN, PINK)
INK = "#222222"
ARROW = {"arrowstyle": "-|>", "color": INK, "lw": 1.4, "shrinkA": 0, "shrinkB": 0}


def box(ax: Axes, at: tuple[float, float], size: tuple[float, float], text: str, color: str):
    """Draw a rounded box with its lower left corner `at`, and its text in the middle."""
    style = "round,pad=0,rounding_size=0.08"
    ax.add_patch(FancyBboxPatch(at, *size, boxstyle=style, fc=color, ec=INK, lw=1))
    write(ax, at[0] + size[0] / 2, at[1] + size[1] / 2, text)


def write(ax: Axes, x: float, y: float, text: str, size: float = 10):
    """Write a text with its middle at (x, y)."""
    ax.text(x, y, text, ha="center", va="center", fontsize=size, color=INK)


def arrow(ax: Axes, start: tuple[float, float], end: tuple[float, float], bend: float = 0.0):
    """Draw an arrow between two points, bent by `bend`."""
    ax.annotate("", end, start, arrowprops={**ARROW, "connectionstyle": f"arc3,rad={bend}"})


def layers(ax: Axes):
    """How PyTorch sits on Gloo, NCCL and MPI."""
    box(ax, (0, 4.2), (9, 0.8), "your training loop: model, loss, backward, optimizer", GREEN)
    box(ax, (0, 3.2), (9, 0.8), "DistributedDataParallel (task 3): buckets, overlap", BLUE)
    box(
        ax,
        (0, 2.2),
        (9, 0.8),
        "torch.distributed (tasks 2a, 2b): gather, scatter, all_reduce ...",
        BLUE,
    )
    backends = ("Gloo\nCPU tensors", "NCCL\nNVIDIA GPUs", "MPI\nif PyTorch was built with it")
    carriers = (
        "TCP (Ethernet)",
        "NVLink, PCIe,\nInfiniBand, TCP",
        "what the\nMPI library uses",
    )
    for at, (backend, carrier) in enumerate(zip(backends, carriers, strict=True)):
        box(ax, (3.05 * at, 1.1), (2.9, 0.9), backend, ORANGE)
        box(ax, (3.05 * at, 0), (2.9, 0.9), carrier, GRAY)


def parallel(ax: Axes):
    """Data parallelism beside model parallelism."""
    write(ax, 2.2, 4.3, "data parallel", 12)
    write(ax, 7.8, 4.3, "model parallel", 12)
    for rank, shade in enumerate(SHADES):
        x = 1.15 * rank
        box(ax, (x, 1.2), (1.0, 2.6), "whole\nmodel", shade)
        arrow(ax, (x + 0.5, 0.7), (x + 0.5, 1.15))
        write(ax, x + 0.5, 0.45, f"rows of\nrank {rank}", 9)
        box(ax, (6.3, 1.2 + 0.65 * rank), (3.0, 0.6), f"layers of rank {rank}", shade)
    arrow(ax, (7.8, 0.7), (7.8, 1.15))
    write(ax, 7.8, 0.45, "all rows", 9)


def gather_scatter(ax: Axes):
    """Gather and scatter: every other rank speaks with rank 0."""
    for at, title in ((0.0, "gather"), (5.4, "scatter")):
        write(ax, at + 2.0, 4.4, title, 12)
        box(ax, (at + 1.3, 3.0), (1.4, 0.9), "rank 0\nmean", SHADES[0])
        for rank in (1, 2, 3):
            x = at + 1.5 * (rank - 1)
            box(ax, (x, 0.4), (1.0, 0.8), f"rank {rank}", SHADES[rank])
            low, high = (x + 0.5, 1.25), (at + 1.5 + 0.5 * (rank - 1), 2.95)
            arrow(ax, low, high) if title == "gather" else arrow(ax, high, low)


def ring(ax: Axes):
    """A ring all_reduce: every rank speaks with its neighbors."""
    corners = ((0.4, 2.9), (3.6, 2.9), (3.6, 0.5), (0.4, 0.5))
    for rank, (x, y) in enumerate(corners):
        box(ax, (x, y), (1.4, 0.9), f"rank {rank}", SHADES[rank])
    arrow(ax, (1.85, 3.35), (3.55, 3.35))
    arrow(ax, (4.3, 2.85), (4.3, 1.45))
    arrow(ax, (3.55, 0.95), (1.85, 0.95))
    arrow(ax, (1.1, 1.45), (1.1, 2.85))
    write(ax, 2.7, 2.15, "S/4 at a time", 9)
    write(ax, 7.7, 3.3, "reduce-scatter: after 3 rounds each\nrank has the sum of one quarter")
    write(ax, 7.7, 2.2, "all-gather: after 3 more rounds each\nrank has all four quarters")


PICTURES: dict[str, tuple[Callable[[Axes], None], tuple[float, float, float, float]]] = {
    "layers": (layers, (-0.1, 9.1, -0.1, 5.1)),  # drawing, (left, right, bottom, top)
    "parallel": (parallel, (-0.2, 9.6, -0.1, 4.6)),
    "gather_scatter": (gather_scatter, (-0.2, 9.8, 0.2, 4.7)),
    "ring": (ring, (0.2, 9.7, 0.3, 4.0)),
}


def draw(name: str, path: Path) -> None:
    """Write a picture as SVG; the same bytes each time."""
    drawing, (left, right, bottom, top) = PICTURES[name]
    with plt.rc_context({"svg.fonttype": "path", "svg.hashsalt": name}):
        size = ((right - left) * 0.7, (top - bottom) * 0.7)
        figure, ax = plt.subplots(figsize=size, layout="constrained")
        ax.set(xlim=(left, right), ylim=(bottom, top))
        ax.set_axis_off()
        drawing(ax)
        figure.savefig(path, facecolor="white", metadata={"Date": None})
        plt.close(figure)


if __name__ == "__main__":
    FOLDER.mkdir(parents=True, exist_ok=True)
    for picture in PICTURES:
        draw(picture, FOLDER / f"{picture}.svg")
    sys.exit(0)
