"""Runs side by side: first losses, accuracy per epoch, time per iteration, traffic, a picture.

python -m report compare RUN_DIR ... [--picture FILE]
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from common.commands import program
from common.errors import UserError
from common.record.format import PHASES, difference
from common.tables import text_table
from common.units import after_epoch
from report import figures
from report.runs import Run, largest_gap, load_run
from report.style import COLORS, HATCHES, LINES, SMALL, WIDTH, label_ticks, pyplot

SETTINGS = (  # flags that change the losses, besides the batch and the number of steps
    "model_name_or_path",
    "max_seq_length",
    "learning_rate",
    "weight_decay",
    "max_grad_norm",
    "warmup_steps",
    "seed",
    "dropout",
    "fp16",
)


def side_by_side(runs: Sequence[Run]) -> str:
    """The comparison of whole runs as text: losses, metrics and times."""
    heads = [f"task {run.name}" for run in runs]
    parts = (losses_table(runs, heads), metrics_table(runs, heads), times_table(runs, heads))
    return "\n".join(part for part in parts if part)


def losses_table(runs: Sequence[Run], heads: list[str]) -> str:
    """The first five losses, and how far each run's are from the first run's."""
    first = runs[0].losses
    rows = [
        [f"minibatch {i + 1}", *(f"{run.losses[i]:.7f}" for run in runs)]
        for i in range(min(5, *(len(run.losses) for run in runs)))
    ]
    gaps = []
    for run in runs:
        steps = min(run.full_steps, runs[0].full_steps)
        gaps.append(f"{largest_gap(run.losses[:steps], first[:steps]):.1e}" if steps else "-")
    rows.append(["max |difference|, first epoch", *gaps])
    table = text_table("loss, the mean over all workers' examples", heads, rows)
    return "\n".join([table.rstrip("\n"), *unlike(runs), ""])


def unlike(runs: Sequence[Run]) -> list[str]:
    """A line for each setting that differs between runs, and so makes their losses differ."""
    settings: list[dict[str, Any]] = [
        {
            "total batch": figures.total_batch(run),
            "steps (the learning rate falls over all of a run's)": len(run.steps[0]),
            **{f"--{name}": run.facts["arguments"].get(name) for name in SETTINGS},
        }
        for run in runs
    ]
    return [
        f"  losses differ with {name}: {', '.join(str(each[name]) for each in settings)}"
        for name in next(iter(settings), {})
        if len({each[name] for each in settings}) > 1
    ]


def metrics_table(runs: Sequence[Run], heads: list[str]) -> str:
    """The metrics after each epoch, where a run has them."""
    epochs = sorted({m["epoch"] for run in runs for m in run.facts["metrics"]})
    names = [n for n in (runs[0].facts["metrics"] or [{}])[0] if n != "epoch"]
    rows = []
    for epoch in epochs:
        found = [next((m for m in run.facts["metrics"] if m["epoch"] == epoch), {}) for run in runs]
        for name in names:
            values = (f"{m[name]:.4f}" if name in m else "-" for m in found)
            rows.append([f"{name} {after_epoch(epoch)}", *values])
    return text_table("dev set", heads, rows) if rows else ""


def times_table(runs: Sequence[Run], heads: list[str]) -> str:
    """Mean seconds per iteration by phase, without the first iteration; "" where there are none."""
    if all(len(run.steps[0]) < 2 for run in runs):
        return ""
    rows = [
        [phase, *(f"{1000 * run.seconds(phase):.1f}" for run in runs)]
        for phase in (*PHASES, "total")
    ]
    rows.append(["iterations", *(str(max(0, len(run.steps[0]) - 1)) for run in runs)])
    title = "milliseconds per iteration, mean over the ranks, the first iteration discarded"
    return text_table(title, heads, rows)


def traffic_table(runs: Sequence[Run]) -> str:
    """Expected and measured bytes, for the runs that recorded them."""
    rows = []
    for run in runs:
        if run.traffic and run.traffic["per_iteration"]:
            mean = run.traffic["per_iteration"]
            sizes = (f"{mean[k] / 1e6:.3f}" for k in ("payload", "sent_bytes", "expected"))
            measured, off = mean["measured"] / 1e6, difference(mean)
            gap = "-" if off is None else f"{off:+.2f} %"
            rows.append([f"task {run.name}", *sizes, f"{measured:.3f}", gap])
    title = "traffic per iteration, MB (sent and received; on loopback of all workers together)"
    heads = ["payload", "rank 0 sends", "expected", "measured", "difference"]
    return text_table(title, heads, rows) if rows else ""


def picture(runs: Sequence[Run], path: Path | str, measured: Sequence[Run] = ()) -> None:
    """Draw losses and times of `runs`, and traffic of `measured`; the suffix is the format."""
    names = figures.names_of(runs)
    figure, axes = pyplot().subplot_mosaic(
        [["loss", "time"], ["traffic", "traffic"]], figsize=(WIDTH, 6), layout="constrained"
    )
    for i, (run, name) in enumerate(zip(runs, names, strict=True)):
        style = {"color": COLORS[i % len(COLORS)], "ls": LINES[i % len(LINES)]}
        axes["loss"].plot(range(1, len(run.losses) + 1), run.losses, label=name, **style)
    axes["loss"].set(xlabel="step", ylabel="loss", title="loss of all workers' examples")
    axes["loss"].legend()
    bars_of_phases(axes["time"], runs)
    profiled = [r for r in measured or runs if r.traffic and r.traffic["per_iteration"]]
    bars_of_traffic(axes["traffic"], profiled)
    facts = runs[0].facts
    workers = max(run.facts["world_size"] for run in runs)
    commit = (facts["git_commit"] or "no commit")[:12]
    figure.suptitle(
        f"{facts['glue_task']}, {facts['arguments']['model_name_or_path']}, up to {workers} "
        f"workers on {facts['host']} ({facts['processor']}, {facts['cores']} cores), {commit}",
        fontsize=SMALL,
        wrap=True,
    )
    figure.savefig(path, dpi=160)
    pyplot().close(figure)


def bars_of_phases(axis: Any, runs: Sequence[Run]) -> None:
    """Each run's milliseconds per iteration, by phase."""
    places, bottom = range(len(runs)), [0.0] * len(runs)
    for phase, color, hatch in zip(PHASES, COLORS, HATCHES, strict=False):
        height = [1000 * run.seconds(phase) for run in runs]
        axis.bar(places, height, 0.6, bottom, color=color, hatch=hatch, label=phase)
        bottom = [low + more for low, more in zip(bottom, height, strict=True)]
    label_ticks(axis, places, [run.name for run in runs])
    axis.set(xlabel="task", ylabel="milliseconds", title="time per iteration")
    axis.margins(y=0.3)
    axis.legend(ncols=3)


def bars_of_traffic(axis: Any, measured: Sequence[Run]) -> None:
    """Each run's MB per iteration, expected beside measured."""
    for offset, key in ((-0.2, "expected"), (0.2, "measured")):
        places = [i + offset for i in range(len(measured))]
        sizes = [run.traffic["per_iteration"][key] / 1e6 for run in measured]
        hatch, color = ("", COLORS[0]) if key == "expected" else ("//", COLORS[1])
        axis.bar(places, sizes, 0.38, color=color, hatch=hatch, label=key)
    names = [f"{run.name}\nbatch {figures.total_batch(run)}" for run in measured]
    label_ticks(axis, range(len(measured)), names)
    axis.set(xlabel="task: method", ylabel="MB", title="traffic per iteration, all workers")
    axis.margins(y=0.2)
    if measured:
        axis.legend(ncols=2)


def main(argv: list[str] | None = None) -> int:
    """Print the comparison; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog=program(),
        description="Compare runs: first losses, metrics, times, traffic, a picture.",
    )
    parser.add_argument("runs", nargs="+", metavar="RUN_DIR", help="--output_dir of a run")
    parser.add_argument("--picture", metavar="FILE", help="draw them too (.png, .svg or .pdf)")
    args = parser.parse_args(argv)
    try:
        runs = [load_run(folder) for folder in args.runs]
    except UserError as error:
        print(f"report.compare: {error}", file=sys.stderr)
        return 2
    print(side_by_side(runs), traffic_table(runs), sep="\n")
    if args.picture:
        picture(runs, args.picture)
        print(f"picture: {args.picture}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
