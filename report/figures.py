"""Figures of runs: losses, times, traffic, accuracy, memory.

    python -m report figures RUN_DIR ... [--output_dir figures]

Draws what the records of the runs hold, each figure as PNG and SVG, and lists what it left out.
"""

import argparse
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from common.commands import program
from common.errors import UserError
from common.record.format import PHASES
from report.memory import draw_memory
from report.runs import Run, load_run
from report.style import (
    COLORS,
    HATCHES,
    LINES,
    MARKS,
    WIDTH,
    label_logarithmic,
    label_ticks,
    pyplot,
    save,
)


def names_of(runs: Sequence[Run]) -> list[str]:
    """A name for each run: its task, with its folder where several have the same."""
    tasks = [f"task {run.name}" for run in runs]
    return [
        f"{task}, {run.folder.name}" if tasks.count(task) > 1 else task
        for task, run in zip(tasks, runs, strict=True)
    ]


def source_of(runs: Sequence[Run]) -> str:
    """The runs, machines and commits that a figure comes from, in two lines."""
    machines = {
        f"{run.facts['host']} ({run.facts['processor']}, {run.facts['cores']} cores)"
        for run in runs
    }
    commits = {(run.facts["git_commit"] or "no commit")[:12] for run in runs}
    folders = ", ".join(dict.fromkeys(run.folder.name for run in runs))
    return f"runs: {folders}\n{'; '.join(sorted(machines))}; commit {', '.join(sorted(commits))}"


def draw_losses(runs: Sequence[Run]) -> Any:
    """The global loss of each step, and beneath how far each run is from the first."""
    figure, (upper, lower) = pyplot().subplots(
        2, 1, figsize=(WIDTH, 5.0), sharex=True, height_ratios=(2, 1), layout="constrained"
    )
    first = runs[0].losses
    for i, (run, name) in enumerate(zip(runs, names_of(runs), strict=True)):
        style = {"color": COLORS[i % len(COLORS)], "ls": LINES[i % len(LINES)]}
        upper.plot(range(1, len(run.losses) + 1), run.losses, label=name, **style)
        if i:
            gaps = [abs(a - b) for a, b in zip(run.losses, first, strict=False)]
            lower.semilogy(range(1, len(gaps) + 1), [gap or float("nan") for gap in gaps], **style)
    upper.set(ylabel="loss (mean of all workers' examples)")
    upper.legend()
    show_whole_decades(lower)
    lower.set(xlabel="step", ylabel=f"|difference| to\n{names_of(runs)[0]}")
    return figure


def show_whole_decades(axis: Any) -> None:
    """Give a logarithmic y-axis labels, however little what is drawn on it spans."""
    values = [value for line in axis.get_lines() for value in line.get_ydata() if value > 0]
    if values:
        low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
        axis.set_ylim(10.0**low, 10.0 ** max(high, low + 1))
    axis.yaxis.set_major_formatter("{x:.0e}")
    axis.yaxis.set_minor_formatter("")


def draw_phases(runs: Sequence[Run]) -> Any:
    """Milliseconds of each phase of an iteration: mean over ranks and steps, first discarded."""
    figure, axis = pyplot().subplots(figsize=(WIDTH, 3.4), layout="constrained")
    places, bottom = range(len(runs)), [0.0] * len(runs)
    for phase, color, hatch in zip(PHASES, COLORS, HATCHES, strict=False):
        height = [1000 * run.seconds(phase) for run in runs]
        axis.bar(places, height, 0.6, bottom, color=color, hatch=hatch, label=phase)
        bottom = [low + more for low, more in zip(bottom, height, strict=True)]
    label_ticks(axis, places, names_of(runs))
    axis.set(ylabel="milliseconds per iteration")
    axis.margins(y=0.25)
    axis.legend(ncols=len(PHASES))
    return figure


def draw_iterations(runs: Sequence[Run]) -> Any:
    """Every iteration's time on rank 0, with the discarded first one marked."""
    figure, axis = pyplot().subplots(figsize=(WIDTH, 3.4), layout="constrained")
    times = [[1000 * line["seconds"]["total"] for line in run.steps[0]] for run in runs]
    axis.boxplot([each[1:] or [float("nan")] for each in times], showfliers=False, widths=0.5)
    for place, each in enumerate(times, 1):
        spread = [place + 0.2 * ((7 * i) % 11 - 5) / 5 for i in range(len(each) - 1)]
        axis.plot(spread, each[1:], ".", color=COLORS[0], ms=3, alpha=0.6)
        axis.plot(place, each[0], "x", color=COLORS[5], ms=8)
    axis.plot([], [], "x", color=COLORS[5], label="first iteration, discarded")
    axis.plot([], [], ".", color=COLORS[0], label="each of the others")
    label_ticks(axis, range(1, len(runs) + 1), names_of(runs))
    axis.set(ylabel="milliseconds per iteration, rank 0", yscale="log")
    label_logarithmic(axis.yaxis)
    axis.legend()
    return figure


def draw_traffic(runs: Sequence[Run]) -> Any:
    """Bytes per iteration, expected and measured on the interface; None without task 4's runs."""
    runs = [run for run in runs if run.traffic and run.traffic["per_iteration"]]
    if not runs:
        return None
    figure, axis = pyplot().subplots(figsize=(WIDTH, 3.4), layout="constrained")
    for way, (key, offset) in enumerate((("expected", -0.2), ("measured", 0.2))):
        sizes = [run.traffic["per_iteration"][key] / 1e6 for run in runs]
        places = [i + offset for i in range(len(runs))]
        axis.bar(places, sizes, 0.38, color=COLORS[way], hatch=HATCHES[way], label=key)
    labels = [
        f"{name}\n{run.traffic['dtype']}" for name, run in zip(names_of(runs), runs, strict=True)
    ]
    label_ticks(axis, range(len(runs)), labels)
    axis.set(ylabel="MB per iteration, sent and received")
    axis.margins(y=0.25)
    axis.legend(ncols=2)
    return figure


def total_batch(run: Run) -> int:
    """Examples of all ranks in a full step."""
    return sum(rank[0]["examples"] for rank in run.steps if rank)


def steps_of_epoch(run: Run) -> int:
    """Steps of a whole epoch, also of a run that ended before: the last may have fewer examples."""
    return math.ceil(run.facts["examples"]["train"] / total_batch(run))


def draw_batches(runs: Sequence[Run]) -> Any:
    """Time and traffic by total batch size; None unless task 4's runs have several."""
    runs = [run for run in runs if run.traffic and run.traffic["per_iteration"]]
    kinds = sorted({(run.traffic["method"], run.traffic["dtype"]) for run in runs})
    if len({total_batch(run) for run in runs}) < 2:
        return None
    figure, (left, right) = pyplot().subplots(1, 2, figsize=(WIDTH, 3.2), layout="constrained")
    for i, kind in enumerate(kinds):
        mine = [r for r in runs if (r.traffic["method"], r.traffic["dtype"]) == kind]
        mine.sort(key=total_batch)
        batches = [total_batch(run) for run in mine]
        style = {"color": COLORS[i % len(COLORS)], "marker": MARKS[i % len(MARKS)]}
        label = f"task {kind[0]}, {kind[1]}"
        left.plot(batches, [1000 * run.seconds("total") for run in mine], label=label, **style)
        measured = [
            run.traffic["per_iteration"]["measured"] / 1e6 * steps_of_epoch(run) for run in mine
        ]
        right.plot(batches, measured, **style)
    left.set(xlabel="total batch, examples", ylabel="milliseconds per iteration", ylim=(0, None))
    right.set(
        xlabel="total batch, examples", ylabel="MB per epoch: a step's mean x steps", ylim=(0, None)
    )
    for axis in (left, right):
        axis.set_xscale("log", base=2)
        sizes = sorted({total_batch(run) for run in runs})
        axis.set_xticks(sizes, map(str, sizes))
        axis.minorticks_off()
    left.legend()
    return figure


def draw_accuracy(runs: Sequence[Run]) -> Any:
    """The GLUE task's first metric by epochs; None where no run was evaluated."""
    runs = [run for run in runs if run.facts["metrics"]]
    if not runs:
        return None
    figure, axis = pyplot().subplots(figsize=(WIDTH, 3.4), layout="constrained")
    metric = next(name for name in runs[0].facts["metrics"][0] if name != "epoch")
    for i, (run, name) in enumerate(zip(runs, names_of(runs), strict=True)):
        points = [(m["epoch"], m[metric]) for m in run.facts["metrics"] if metric in m]
        if points:
            style = {"color": COLORS[i % len(COLORS)], "ls": LINES[i % len(LINES)]}
            axis.plot(*zip(*points, strict=True), marker=MARKS[i % len(MARKS)], label=name, **style)
    axis.set(xlabel="epoch", ylabel=f"{metric} on the dev set (1 is best)")
    axis.xaxis.get_major_locator().set_params(integer=True)
    axis.legend()
    return figure


FIGURES = {
    "losses": draw_losses,
    "phases": draw_phases,
    "iterations": draw_iterations,
    "traffic": draw_traffic,
    "batches": draw_batches,
    "accuracy": draw_accuracy,
    "memory": draw_memory,
}


def draw(runs: Sequence[Run], folder: Path) -> tuple[list[Path], list[str]]:
    """Draw every figure that the runs have records for; returns (files, names left out)."""
    runs = [run for run in runs if run.steps[0]]
    if not runs:
        raise UserError(
            "these runs have no steps, so there is nothing to draw: run a task with --do_train"
        )
    folder.mkdir(parents=True, exist_ok=True)
    files, left_out = [], []
    for name, drawing in FIGURES.items():
        made = save(drawing(runs), name, source_of(runs), folder)
        files += made
        left_out += [] if made else [name]
    return files, left_out


def main(argv: list[str] | None = None) -> int:
    """Draw the figures; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog=program(), description="Draw runs: losses, times, traffic, accuracy, memory."
    )
    parser.add_argument("runs", nargs="+", metavar="RUN_DIR", help="--output_dir of a run")
    parser.add_argument("--output_dir", type=Path, default=Path("figures"), help="default: figures")
    args = parser.parse_args(argv)
    try:
        files, left_out = draw([load_run(folder) for folder in args.runs], args.output_dir)
    except UserError as error:
        print(f"report.figures: {error}", file=sys.stderr)
        return 2
    for path in files:
        print(f"figure: {path}")
    for name in left_out:
        print(f"left out, because no run has the records: {name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
