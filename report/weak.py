"""Weak scaling: runs with the same batch per worker, beside what HetSeq has published.

    python -m report weak RUN_OF_1 RUN_OF_2 RUN_OF_4 [--output_dir figures]

The speed-up is in examples per second, in units of the first run's. Without waiting it would be the
number of workers.
"""

import statistics
from collections.abc import Sequence
from typing import Any, NamedTuple

from common.errors import UserError
from common.tables import text_table
from report.drawing import parser_of_runs, save_figure
from report.runs import Run, load_run
from report.style import COLORS, LINES, MARKS, WIDTH, pyplot

# Ding, Botzer, Weninger: HetSeq, AAAI 2021 (arXiv 2009.14783): BERT on nodes of four GPUs each
HETSEQ = {1: 1.0, 2: 1.72, 4: 3.22, 8: 5.94}
HETSEQ_SOURCE = "HetSeq, published (arXiv 2009.14783)"


class Point(NamedTuple):
    """A run: its workers, median seconds per step, the share of it waiting, and speed-up."""

    workers: int
    seconds: float
    waiting: float
    speed_up: float


def points_of(runs: Sequence[Run]) -> list[Point]:
    """The runs by workers; UserError where the batch per worker is not the same in all."""
    found = []
    for run in sorted(runs, key=lambda run: len(run.steps)):
        steps = [line["seconds"] for line in run.steps[0][1:]]
        sizes = {line["examples"] for rank in run.steps for line in rank[1:]}
        if len(sizes) != 1:
            raise UserError(
                f"{run.folder}: give runs of two steps or more, in which all steps of all workers "
                f"have the same batch; here they have {sorted(sizes)} examples"
            )
        step = statistics.median(each["total"] for each in steps)
        waiting = statistics.median(each["sync"] for each in steps) / step
        found.append((len(run.steps), sizes.pop(), step, waiting))
    if len({batch for _, batch, _, _ in found}) > 1:
        batches = ", ".join(f"{workers}: {batch}" for workers, batch, _, _ in found)
        raise UserError(f"the runs differ in the batch per worker ({batches}); give them the same")
    first_workers, _, first_step, _ = found[0]
    return [
        Point(workers, step, waiting, workers * first_step / (first_workers * step))
        for workers, _, step, waiting in found
    ]


def draw(points: Sequence[Point]) -> Any:
    """The speed-up by number of workers, the ideal one, and HetSeq's."""
    figure, axis = pyplot().subplots(figsize=(WIDTH, 2.6), layout="constrained")
    most = max(point.workers for point in points)
    published = {nodes: value for nodes, value in HETSEQ.items() if nodes <= most}
    ours = {point.workers: point.speed_up for point in points}
    ideal = {workers: workers for workers in ours}
    lines = (("these runs", ours), (HETSEQ_SOURCE, published), ("no waiting", ideal))
    for number, (name, values) in enumerate(lines):
        look = {"color": COLORS[number], "linestyle": LINES[number], "marker": MARKS[number]}
        axis.plot(list(values), list(values.values()), label=name, **look)
    axis.set_xticks(list(ours))
    axis.set_xlabel("workers (HetSeq: nodes of four GPUs), each with the same batch")
    axis.set_ylabel("speed-up")
    axis.legend(frameon=False)
    return figure


def main(argv: list[str] | None = None) -> int:
    """Draw and print; raises UserError for runs that cannot be compared."""
    args = parser_of_runs(__doc__).parse_args(argv)
    runs = [load_run(folder) for folder in args.runs]
    points = points_of(runs)
    rows = [
        (
            f"{point.workers} worker(s)",
            f"{point.seconds:.3f}",
            f"{point.waiting:.0%}",
            f"{point.speed_up:.2f}",
            f"{HETSEQ[point.workers]:.2f}" if point.workers in HETSEQ else "-",
        )
        for point in points
    ]
    heads = ("s per step", "waiting", "speed-up", "HetSeq's")
    print(text_table(f"weak scaling, beside {HETSEQ_SOURCE}", heads, rows))
    save_figure(draw(points), "weak_scaling", runs, args.output_dir)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
