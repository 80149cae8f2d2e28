"""Bytes that each worker of a run held, drawn beside the formulas of sharding.

Source: Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models",
SC 2020, for float32, where AdamW keeps two numbers for each weight.
"""

from collections.abc import Sequence
from typing import Any

from common.tasks import SCRIPTS
from common.units import PER_WEIGHT
from report.runs import Run
from report.style import COLORS, HATCHES, WIDTH, label_ticks, pyplot


def expected_bytes(task: str, weights: int, workers: int) -> float:
    """Bytes of weights, gradients and optimizer state that a worker of a task holds."""
    sharded = SCRIPTS[task].sharded if task in SCRIPTS else ()
    parts = {what: workers if what in sharded else 1 for what in PER_WEIGHT}
    return sum(size * weights / parts[what] for what, size in PER_WEIGHT.items())


def draw_memory(runs: Sequence[Run]) -> Any:
    """Stacked bytes of the worker that held most, with the formula; None where none was recorded.

    Activations are left out: they depend on the batch, and no task shards them.
    """
    runs = sorted((run for run in runs if run.memory), key=lambda run: run.facts["world_size"])
    if not runs:
        return None
    figure, axis = pyplot().subplots(figsize=(WIDTH, 3.4), layout="constrained")
    places, bottom = range(len(runs)), [0.0] * len(runs)
    for what, color, hatch in zip(PER_WEIGHT, COLORS, HATCHES, strict=False):
        height = [max(rank[what] for rank in run.memory) / 1e6 for run in runs]
        label = what.replace("_", " ")
        axis.bar(places, height, 0.6, bottom, color=color, hatch=hatch, label=label)
        bottom = [low + more for low, more in zip(bottom, height, strict=True)]
    for place, run in enumerate(runs):
        weights, workers = run.facts["gradient_bytes"] // 4, run.facts["world_size"]
        formula = expected_bytes(run.facts["task"], weights, workers) / 1e6
        label = "formula" if place == 0 else None
        axis.plot([place - 0.4, place + 0.4], [formula] * 2, color="black", lw=2, label=label)
    label_ticks(axis, places, [f"{run.name}\nN = {run.facts['world_size']}" for run in runs])
    axis.set(ylabel="MB on one worker")
    axis.margins(y=0.3)
    axis.legend(ncols=2)
    return figure
