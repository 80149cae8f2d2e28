"""The timeline of a pipeline: which stage computes when, and how large the bubble is.

    python -m report timeline RUN_DIR ... [--output_dir figures]

Draws the last step of each run of task 7, a panel a run, and prints for each how much of its steps
the workers wait, the median over the steps but the first, beside (p - 1)/(v m + p - 1) of p workers
with v stages each, and m micro-batches; the most micro-batches that each worker has kept, once for
each of its stages; and, of runs with --count_traffic, the bytes at a border of a step beside
2 t h x 4 of its t tokens and h hidden units.
"""

import csv
import json
import statistics
from collections.abc import Sequence
from typing import Any, NamedTuple

from common.errors import UserError
from common.tables import text_table
from report.drawing import parser_of_runs, save_figure
from report.figures import names_of
from report.runs import Run, load_run
from report.schema import NUMBER, check
from report.style import COLORS, HATCHES, WIDTH, pyplot

KINDS = ("forward", "backward")
INTEGER = (int,)
LINE = {"step": INTEGER, "what": (str,), "stage": INTEGER, "microbatch": INTEGER}
LINE |= {"start": NUMBER, "end": NUMBER}


class Pass(NamedTuple):
    """A forward or backward pass of a micro-batch on a stage; times in seconds."""

    step: int
    what: str
    stage: int
    microbatch: int
    start: float
    end: float


def load_timeline(run: Run) -> list[list[Pass]]:
    """The passes of every rank of a run; UserError where it has none."""
    found = []
    for rank in range(run.facts["world_size"]):
        path = run.folder / f"timeline.rank{rank}.jsonl"
        try:
            lines = [json.loads(line) for line in path.read_text().splitlines()]
            for number, line in enumerate(lines, 1):
                check(line, LINE, f"{path.name}, line {number}")
            found.append([Pass(**line) for line in lines if line["what"] in KINDS])
        except (OSError, ValueError, TypeError) as error:
            raise UserError(
                f"{path}: cannot be read as a timeline ({error}); give a run of task 7"
            ) from None
    if not all(found):
        raise UserError(f"{run.folder}: a stage has no passes; give a run that trains")
    return found


def steps_of(timeline: Sequence[Sequence[Pass]]) -> list[list[list[Pass]]]:
    """The passes of every rank, step by step."""
    numbers = sorted({each.step for each in timeline[0]})
    return [[[p for p in rank if p.step == number] for rank in timeline] for number in numbers]


def bubble_of(step: Sequence[Sequence[Pass]]) -> float:
    """The share of a step in which the stages wait, from the first pass to the end of the last."""
    start = min(each.start for rank in step for each in rank)
    end = max(each.end for rank in step for each in rank)
    busy = sum(each.end - each.start for rank in step for each in rank)
    return 1 - busy / (len(step) * (end - start))


def kept_by(passes: Sequence[Pass]) -> int:
    """The most micro-batches that have gone forward on a stage and not yet back."""
    kept = most = 0
    for each in sorted(passes, key=lambda each: each.end):
        kept += 1 if each.what == "forward" else -1
        most = max(most, kept)
    return most


def border_bytes(run: Run) -> tuple[float, float] | None:
    """(measured, expected) bytes of the first step at a border; None if none are known.

    Rank 0 has one, and with every further stage two more, which have as many.
    """
    path = run.folder / "collectives.rank0.csv"
    if not run.traffic or not path.exists():
        return None
    with path.open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["collective"] in ("isend", "irecv")]
    first = [row for row in rows if row["step"] == "1"]
    if not first:
        return None
    largest = max(first, key=lambda row: int(row["bytes"]))
    hidden = int(largest["shape"].split("x")[-1])
    tokens = max(rank[0]["tokens"] for rank in run.steps)
    if run.facts["arguments"].get("schedule"):  # the library's, which pads all rows alike
        examples = max(rank[0]["examples"] for rank in run.steps)
        tokens = examples * run.facts["arguments"]["max_seq_length"]
    borders = 2 * chunks_of(run) - 1
    return sum(int(row["bytes"]) for row in first) / borders, 2 * tokens * hidden * 4


def workers_of(run: Run) -> int:
    """How many workers a model is divided over."""
    return run.facts["arguments"].get("pipeline") or run.facts["world_size"]


def chunks_of(run: Run) -> int:
    """How many stages each worker of a run has."""
    return run.facts["arguments"].get("chunks") or 1


def row_of(name: str, run: Run) -> tuple[Any, ...]:
    """A run's row of the table."""
    timeline = load_timeline(run)
    steps = steps_of(timeline)
    workers = workers_of(run)
    count = len({each.microbatch for each in steps[0][0]})
    bubble = statistics.median(map(bubble_of, steps[1:] or steps))
    theory = (workers - 1) / (count * chunks_of(run) + workers - 1)
    kept = ",".join(str(max(map(kept_by, ranks))) for ranks in zip(*steps, strict=True))
    border = border_bytes(run)
    shown = ("-", "-") if border is None else (f"{each:,.0f}" for each in border)
    return (name, workers * chunks_of(run), count, f"{bubble:.2f}", f"{theory:.2f}", kept, *shown)


def table(runs: Sequence[Run]) -> str:
    """Bubbles, kept micro-batches and bytes of some runs."""
    heads = ("stages", "micro-batches", "bubble", "(p-1)/(vm+p-1)", "kept by worker")
    heads += ("bytes at a border", "2 t h x 4")
    rows = [row_of(name, run) for name, run in zip(names_of(runs), runs, strict=True)]
    return text_table("pipelines: the share of a step in which the stages wait", heads, rows)


def draw(runs: Sequence[Run]) -> Any:
    """The passes of each worker in the last step; a number names the micro-batch.

    A dash marks those of a worker's second stage, two those of its third.
    """
    figure, axes = pyplot().subplots(
        len(runs), 1, figsize=(WIDTH, 0.6 + 1.5 * len(runs)), squeeze=False, layout="constrained"
    )
    for axis, run, name in zip(axes[:, 0], runs, names_of(runs), strict=True):
        last = steps_of(load_timeline(run))[-1]
        begin = min(each.start for rank in last for each in rank)
        for rank, passes in enumerate(last):
            for kind, color, hatch in zip(KINDS, COLORS, HATCHES, strict=False):
                mine = [each for each in passes if each.what == kind]
                spans = [(each.start - begin, each.end - each.start) for each in mine]
                axis.broken_barh(
                    spans,
                    (rank - 0.4, 0.8),
                    color=color,
                    hatch=hatch,
                    edgecolor="white",
                    label=kind if rank == 0 else None,
                )
                for (start, length), each in zip(spans, mine, strict=True):
                    middle = start + length / 2
                    dashes = "'" * (each.stage // workers_of(run))
                    axis.text(
                        middle,
                        rank,
                        f"{each.microbatch + 1}{dashes}",
                        ha="center",
                        va="center",
                        color="white",
                        fontsize=6,
                    )
        axis.set_yticks(range(len(last)), [f"rank {rank}" for rank in range(len(last))])
        axis.invert_yaxis()
        axis.set_title(name, loc="left")
    axes[0, 0].legend(ncols=2, loc="lower right", bbox_to_anchor=(1, 1), frameon=False)
    axes[-1, 0].set_xlabel("seconds, in the last step")
    return figure


def main(argv: list[str] | None = None) -> int:
    """Draw and print; raises UserError for folders that are not runs of task 7."""
    args = parser_of_runs(__doc__).parse_args(argv)
    runs = [load_run(folder) for folder in args.runs]
    print(table(runs))
    save_figure(draw(runs), "timeline", runs, args.output_dir)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
