"""Who computes and who waits: a chart of every worker's steps, and the bounds of a split.

    python -m report waiting RUN_DIR ... [--steps 5] [--output_dir figures]

Draws the last steps of each run, a panel a run, and prints what share of the time each worker waits
and how the time per step compares with two bounds, both from the workers' measured seconds per
example c and their examples n: what this split can reach, the largest c n, and what the best split
of the same B examples can, B / sum(1 / c).
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

from common.errors import UserError
from common.tables import text_table
from report.drawing import parser_of_runs, save_figure
from report.figures import names_of
from report.runs import Run, load_run
from report.style import COLORS, HATCHES, WIDTH, pyplot

COMPUTING = ("forward", "backward")
LAST = 20  # steps from whose mean the bounds are made: a split by speed has settled by then


class Bounds(NamedTuple):
    """Seconds per step, as measured and at best, and the share in which each worker waits."""

    step: float
    split: float
    best: float
    waiting: list[float]


def bounds_of(run: Run) -> Bounds:
    """Bounds from a run's last steps, the first step left out; UserError where there are none."""
    ranks = [rank[1:][-LAST:] for rank in run.steps]
    if not ranks[0]:
        raise UserError(f"{run.folder}: has one step at most; give a run of several")
    seconds = [[line["seconds"] for line in rank] for rank in ranks]
    total = sum(each["total"] for each in seconds[0]) / len(seconds[0])
    computing = [sum(computing_of(each) for each in rank) / len(rank) for rank in seconds]
    examples = [sum(line["examples"] for line in rank) / len(rank) for rank in ranks]
    if not all(examples):
        raise UserError(f"{run.folder}: a worker has no examples; give a run in which all have")
    each = [time / count for time, count in zip(computing, examples, strict=True)]
    waiting = [sum(s["sync"] for s in rank) / sum(s["total"] for s in rank) for rank in seconds]
    return Bounds(total, max(computing), sum(examples) / sum(1 / c for c in each), waiting)


def computing_of(seconds: dict[str, float]) -> float:
    """The seconds of a step in which a worker computes on its examples."""
    return sum(seconds[phase] for phase in COMPUTING)


def draw(runs: Sequence[Run], steps: int) -> Any:
    """Each worker's computing and waiting in the last steps, all workers' ends being one."""
    figure, axes = pyplot().subplots(
        len(runs),
        1,
        figsize=(WIDTH, 0.6 + 1.5 * len(runs)),
        sharex=True,
        squeeze=False,
        layout="constrained",
    )
    for axis, run, name in zip(axes[:, 0], runs, names_of(runs), strict=True):
        for rank, lines in enumerate(run.steps):
            for kind, spans in spans_of(run, lines[-steps:], steps).items():
                axis.broken_barh(
                    spans,
                    (rank - 0.4, 0.8),
                    color=COLORS[list(KINDS).index(kind)],
                    hatch=HATCHES[list(KINDS).index(kind)],
                    edgecolor="white",
                    label=kind if rank == 0 else None,
                )
        axis.set_yticks(range(len(run.steps)), [f"rank {r}" for r in range(len(run.steps))])
        axis.invert_yaxis()
        axis.set_title(name, loc="left")
    axes[0, 0].legend(ncols=len(KINDS), loc="lower right", bbox_to_anchor=(1, 1), frameon=False)
    axes[-1, 0].set_xlabel(f"seconds, in the last {steps} steps")
    return figure


KINDS = {"computing": COMPUTING, "waiting and averaging": ("sync",), "rest": ("data", "update")}
ORDER = ("data", *COMPUTING, "sync", "update")  # in which a step goes through its phases


def spans_of(run: Run, lines: Sequence[dict], steps: int) -> dict[str, list[tuple[float, float]]]:
    """(start, length) of each kind of time of a worker, its steps beginning when the slowest's do.

    Records have no clock times, so a step begins when the longest of all ranks has ended before it.
    """
    longest = [max(s["seconds"]["total"] for s in step) for step in zip(*run.steps, strict=True)]
    found: dict[str, list[tuple[float, float]]] = {kind: [] for kind in KINDS}
    begin = 0.0
    for line, length in zip(lines, longest[-steps:], strict=True):
        at = begin
        for phase in ORDER:
            kind = next(kind for kind, phases in KINDS.items() if phase in phases)
            found[kind].append((at, line["seconds"][phase]))
            at += line["seconds"][phase]
        begin += length
    return found


def main(argv: list[str] | None = None) -> int:
    """Draw and print; raises UserError for folders that are not runs of several workers."""
    parser = parser_of_runs(__doc__)
    parser.add_argument("--steps", type=int, default=5, help="to draw (default: 5)")
    args = parser.parse_args(argv)
    if args.steps < 1:
        raise UserError(f"--steps {args.steps}: must be at least 1")
    runs = [load_run(folder) for folder in args.runs]
    found = [bounds_of(run) for run in runs]
    heads = ("measured", "this split's bound", "the best split's", "ratio to it", "waiting")
    rows = [
        (
            name,
            *(f"{value:.3f}" for value in (each.step, each.split, each.best)),
            f"{each.step / each.best:.2f}",
            ", ".join(f"{share:.0%}" for share in each.waiting),
        )
        for name, each in zip(names_of(runs), found, strict=True)
    ]
    title = f"seconds per step, mean of the last {LAST}, and each worker's share of waiting"
    print(text_table(title, heads, rows))
    save_figure(draw(runs, args.steps), "waiting", runs, args.output_dir)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
