"""How training scales: a sweep's cells, a cost model fitted to some and checked on the others.

    python -m report.scaling runs/sweep

prints the costs, the error of the predictions, and how BERT-base would scale; and draws it. Beside
the sweep it writes scaling.md: predicted against measured time of every cell, and what the model
predicts for BERT-base and BERT-large on up to 1,024 workers. The formulas: report/cost_model.py.
"""

import argparse
import json
import sys
from pathlib import Path

from common.commands import program
from common.errors import UserError
from common.files import write_whole
from common.tables import markdown_table, text_table
from report.cost_model import Model, accuracy, calibrate, check
from report.extrapolate import BERTS, TASKS, answers, curves, scaled
from report.scaling_figures import figures, measured_cells, model_figure, source_of, waiting

MANY = 64  # workers, of the summary
HEADS = (
    "task",
    "workers",
    "batch of each",
    "link",
    "s/iteration",
    "waiting, s",
    "rank 0 sends, MB",
    "others send, MB",
    "expected",
)
LEGEND = """In per cent: efficiency, the examples per second of a worker against one alone. Best
for 1,024 in all: how many workers (1 to 1,024) do a total batch of 1,024 the fastest. 80 % at 64
from: the least total batch with which 64 workers have an efficiency of 80 %."""


def cells_table(sweep: dict) -> str:
    """The sweep's cells in Markdown; failed ones with their error's first line."""
    measured = measured_cells(sweep)
    return markdown_table(HEADS, (row(cell, measured) for cell in sweep["cells"]))


def row(cell: dict, measured: list[dict]) -> list[object]:
    """A cell's row of the table."""
    start = [cell["task"], cell["workers"], cell["batch"]]
    if "failure" in cell:
        return [*start, cell["rate"], f"failed: {cell['failure'].splitlines()[0]}", "", "", "", ""]
    seconds = f"{cell['seconds']['total']:.3f}"
    if cell["workers"] == 1:
        return [*start, "none", seconds, f"{waiting(cell, measured):.3f}", "0", "", ""]
    sent = [f"{each / 1e6:.2f}" for each in cell["sent"][:2]]
    expected = [each for each in cell["expected"][:2] if each]  # not of every task
    due = " / ".join(f"{each[0] / 1e6:.2f}" for each in expected)
    return [*start, cell["rate"], seconds, f"{waiting(cell, measured):.3f}", *sent, due]


def markdown(rows: list[dict[str, object]]) -> str:
    """Rows (dicts) as a table."""
    return markdown_table(list(rows[0]), (row.values() for row in rows))


def costs(model: Model, used: int) -> list[str]:
    """The calibrated costs, as lines."""
    return [
        f"calibrated on {used} cells:",
        f"- compute: {model.fixed:.3f} s + {model.example:.4f} s per example, on all cores",
        f"- network: {model.latency * 1e3:.2f} ms per message + {model.line:.3f} x bytes / rate "
        f"({model.line + model.turns:.3f} x where two workers exchange)",
        f"- handling: {model.handling * 1e9:.2f} ns per byte of gradients",
    ]


def error_of(rows: list[dict]) -> str:
    """How far the model is from the cells that it was not fitted to."""
    found = accuracy(rows)
    if not found:
        return "no cell to check the network's part on: sweep slower links or larger models"
    return f"error where the network is the limit: median {found[0]:.1%}, worst {found[1]:.1%}"


def summary(model: Model, used: int, rows: list[dict], args: argparse.Namespace) -> str:
    """What fits one screen: the costs, the error, and how BERTS[0] would scale."""
    bert = BERTS[0]
    lines = [*costs(model, used), f"the other {len(rows)} cells: {error_of(rows)}"]
    for speed in args.speed[:2]:
        scaling = answers(scaled(model, bert, speed, args.latency / 1e3), args.batch)
        links = list(dict.fromkeys(row["link"] for row in scaling))
        cells = [[row[f"{MANY} workers"] for row in scaling if row["link"] == k] for k in links]
        title = f"{bert.name}, efficiency of {MANY} workers {speed:g} x as fast as this machine:"
        heads = [f"task {key}" for key in TASKS]
        table = [[link, *each] for link, each in zip(links, cells, strict=True)]
        lines += ["", text_table(title, heads, table).rstrip()]
    return "\n".join(lines)


def explain(model: Model, used: int, rows: list[dict], args: argparse.Namespace) -> str:
    """The calibrated costs, the check, and the extrapolation, as text."""
    error = error_of(rows)
    lines = [*costs(model, used), "", "the other cells, seconds per iteration:", ""]
    if rows:
        lines += [markdown([formatted(row) for row in rows]), ""]
    lines.append(error)
    for bert in BERTS:
        for speed in args.speed:
            extrapolated = scaled(model, bert, speed, args.latency / 1e3)
            lines += [
                "",
                f"{bert.name}, {4 * bert.parameters / 1e6:.0f} MB of gradients, {args.batch} "
                f"examples each, workers {speed:g} x as fast as this machine, at least "
                f"{args.latency:g} ms per message (extrapolated; {error}):",
                "",
                markdown(answers(extrapolated, args.batch)),
            ]
    return "\n".join([*lines, "", LEGEND])


def formatted(row: dict) -> dict[str, object]:
    """A row of the check with its numbers as text."""
    numbers = {name: f"{row[name]:.3f}" for name in ("measured", "predicted")}
    return {**row, **numbers, "error": f"{row['error']:+.1%}"}


def main(argv: list[str] | None = None) -> int:
    """Print, write and draw what the model says of a sweep; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog=program(), description="Fit a cost model to a sweep, check it, and extrapolate."
    )
    parser.add_argument("sweep", type=Path, help="--output_dir of experiments.scaling")
    parser.add_argument(
        "--speed",
        type=float,
        nargs="+",
        default=[1, 100],
        help="of a worker, relative to this machine (default: 1 100)",
    )
    parser.add_argument(
        "--latency",
        type=float,
        default=0.05,
        help="of a message in milliseconds, at least (default: 0.05)",
    )
    parser.add_argument("--batch", type=int, default=16, help="examples of each (default: 16)")
    args = parser.parse_args(argv)
    try:
        sweep = load(args.sweep)
        cells = measured_cells(sweep)
        model, used = calibrate(cells)
        rows = check(model, [c for c in cells if c["workers"] > 1 and c not in used])
        print(summary(model, len(used), rows, args))
        path = args.sweep / "scaling.md"
        write_whole(path, explain(model, len(used), rows, args) + "\n")
        base, speed = BERTS[0], args.speed[0]
        lines = curves(scaled(model, base, speed, args.latency / 1e3), args.batch)
        title = f"{base.name}, {args.batch} examples each, workers {speed:g} x as fast"
        drawn = model_figure(rows, lines, title, source_of(sweep), args.sweep)
        drawn += figures(sweep, args.sweep)
        print(f"every cell, BERT-large, up to 1,024 workers: {path}")
        print(f"figures: {', '.join(sorted(figure.name for figure in drawn))}")
    except UserError as error:
        print(f"report.scaling: {error}", file=sys.stderr)
        return 2
    return 0


def load(folder: Path) -> dict:
    """The sweep in a folder; raises UserError if there is none."""
    try:
        return json.loads((folder / "sweep.json").read_text())
    except (OSError, ValueError) as error:
        raise UserError(
            f"{folder} contains no sweep ({error}); make one with experiments.scaling"
        ) from None


if __name__ == "__main__":
    sys.exit(main())
