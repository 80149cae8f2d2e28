"""How training scales: a sweep's cells, a cost model fitted to some and checked on the others.

    python -m report.scaling runs/sweep

prints the costs, predicted against measured time per iteration, and what the model says of
BERT-base and BERT-large on up to 1,024 workers; and draws it. The formulas: report/cost_model.py.
"""

import argparse
import json
import sys
from dataclasses import dataclass, replace
from pathlib import Path

from common.errors import UserError
from common.files import write_whole
from report.cost_model import accuracy, calibrate, check
from report.scaling_figures import figures, measured_cells, model_figure, source_of, waiting

GRID = [2**power for power in range(11)]  # workers: 1 to 1,024
RATES = ("1gbit", "10gbit", "25gbit", "100gbit", "400gbit")
TASKS = ("2a", "2b", "3")
SHOWN = (4, 64, 1024)  # workers
EFFICIENT = 0.8
LEGEND = """In per cent: efficiency, the examples per second of a worker against one alone. Best
for 1,024 in all: how many workers (1 to 1,024) do a total batch of 1,024 the fastest. 80 % at 64
from: the least total batch with which 64 workers have an efficiency of 80 %."""


def table(sweep):
    """The sweep's cells in Markdown; failed ones with what was said."""
    cells, lines = measured_cells(sweep), []
    heads = ("task", "workers", "batch of each", "link", "s/iteration", "waiting, s",
             "rank 0 sends, MB", "others send, MB", "expected")  # fmt: skip
    lines += ["| " + " | ".join(heads) + " |", "|" + " --- |" * len(heads)]
    for cell in sweep["cells"]:
        row = [cell["task"], cell["workers"], cell["batch"], cell["rate"]]
        if "failure" in cell:
            said = cell["failure"].splitlines()[0].replace("|", "/")
            lines.append("| " + " | ".join(map(str, row)) + f" | failed: {said} |" + " |" * 4)
            continue
        row += [f"{cell['seconds']['total']:.3f}", f"{waiting(cell, cells):.3f}"]
        if cell["workers"] > 1:
            sent = [f"{each / 1e6:.2f}" for each in cell["sent"][:2]]
            due = " / ".join(f"{each[0] / 1e6:.2f}" for each in cell["expected"][:2])
            row += [*sent, due]
        else:
            row[3:4], row[6:] = ["none"], ["0", "", ""]
        lines.append("| " + " | ".join(map(str, row)) + " |")
    return "\n".join(lines)


@dataclass(frozen=True)
class Bert:
    """A published size: parameters in all, in the word embedding, and in the encoder's layers."""

    name: str
    parameters: int
    embedding: int
    encoder: int


BERTS = (
    Bert("BERT-base", 109_482_240, 30522 * 768, 12 * 7_087_872),
    Bert("BERT-large", 335_141_888, 30522 * 1024, 24 * 12_596_224),
)


def scaled(model, bert, speed, latency):
    """The Model of another size of BERT, on workers `speed` times as fast as the measured one.

    An example costs in proportion to the encoder's parameters, what is fixed to all of them. A
    message takes at least `latency` seconds: large buckets tell little of it.
    """
    size = 4 * bert.parameters
    encoder = model.gradient_bytes - model.embedding_bytes
    return replace(
        model,
        fixed=model.fixed * size / model.gradient_bytes / speed,
        example=model.example * 4 * bert.encoder / encoder / speed,
        handling=model.handling / speed,
        latency=max(model.latency, latency),
        gradient_bytes=size,
        embedding_bytes=4 * bert.embedding,
    )


def best_workers(model, task, total, rate):
    """The number of workers, of 1, 2, 4 ... 1,024, that does a total batch the fastest."""
    able = [workers for workers in GRID if workers <= total]
    return min(able, key=lambda workers: model.seconds(task, workers, total / workers, rate))


def least_batch(model, task, workers, rate):
    """The least total batch, by powers of two, with which so many workers are EFFICIENT."""
    for power in range(21):
        if model.efficiency(task, workers, 2**power, rate) >= EFFICIENT:
            return workers * 2**power
    return None


def answers(model, batch):
    """A row per link rate and task: how it scales, by the model, with `batch` examples each."""
    return [
        {
            "link": rate,
            "task": task,
            **{
                f"{workers} workers": f"{model.efficiency(task, workers, batch, rate):.0%}"
                for workers in SHOWN
            },
            "best for 1,024 in all": best_workers(model, task, 1024, rate),
            "80 % at 64 from": least_batch(model, task, 64, rate) or "never",
        }
        for rate in RATES
        for task in TASKS
    ]


def markdown(rows):
    """Rows (dicts) as a table."""
    lines = ["| " + " | ".join(rows[0]) + " |", "|" + " --- |" * len(rows[0])]
    return "\n".join(lines + ["| " + " | ".join(map(str, row.values())) + " |" for row in rows])


def explain(model, used, rows, args):
    """The calibrated costs, the check, and the extrapolation, as text."""
    found = accuracy(rows)
    told = "no cell to check the network's part on: sweep slower links or larger models"
    if found:
        told = f"error where the network is the limit: median {found[0]:.1%}, worst {found[1]:.1%}"
    shown = [
        {
            **row,
            "measured": f"{row['measured']:.3f}",
            "predicted": f"{row['predicted']:.3f}",
            "error": f"{row['error']:+.1%}",
        }
        for row in rows
    ]
    lines = [
        f"calibrated on {used} cells:",
        f"- compute: {model.fixed:.3f} s + {model.example:.4f} s per example, on all cores",
        f"- network: {model.latency * 1e3:.2f} ms per message + {model.line:.3f} x bytes / rate",
        f"- handling: {model.handling * 1e9:.2f} ns per byte of gradients",
        "",
        "the other cells, seconds per iteration:",
        "",
        *([markdown(shown), ""] if shown else []),
        told,
    ]
    for bert in BERTS:
        for speed in args.speed:
            extrapolated = scaled(model, bert, speed, args.latency / 1e3)
            lines += [
                "",
                f"{bert.name}, {4 * bert.parameters / 1e6:.0f} MB of gradients, {args.batch} "
                f"examples each, workers {speed:g} x as fast as this machine, at least "
                f"{args.latency:g} ms per message (extrapolated; {told}):",
                "",
                markdown(answers(extrapolated, args.batch)),
            ]
    return "\n".join([*lines, "", LEGEND])


def main(argv=None):
    """Print, write and draw what the model says of a sweep; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("sweep", type=Path, help="--output_dir of experiments.scaling")
    parser.add_argument("--speed", type=float, nargs="+", default=[1, 100],
                        help="of a worker, against this machine (default: 1 100)")  # fmt: skip
    parser.add_argument("--latency", type=float, default=0.05,
                        help="of a message in milliseconds, at least (default: 0.05)")  # fmt: skip
    parser.add_argument("--batch", type=int, default=16, help="examples of each (default: 16)")
    args = parser.parse_args(argv)
    try:
        sweep = load(args.sweep)
        cells = measured_cells(sweep)
        model, used = calibrate(cells)
        rows = check(model, [c for c in cells if c["workers"] > 1 and c not in used])
        text = explain(model, len(used), rows, args)
        print(text)
        write_whole(args.sweep / "scaling.md", text + "\n")
        curves = {
            (task, rate): [(n, base.efficiency(task, n, args.batch, rate)) for n in GRID]
            for base in [scaled(model, BERTS[0], args.speed[0], args.latency / 1e3)]
            for task in TASKS
            for rate in RATES[1::2]
        }
        title = f"{BERTS[0].name}, {args.batch} examples each, workers {args.speed[0]:g} x as fast"
        for figure in (
            *figures(sweep, args.sweep),
            *model_figure(rows, curves, title, source_of(sweep), args.sweep),
        ):
            print(f"figure: {figure}")
    except UserError as error:
        print(f"report.scaling: {error}", file=sys.stderr)
        return 2
    return 0


def load(folder):
    """The sweep in a folder; raises UserError if there is none."""
    try:
        return json.loads((folder / "sweep.json").read_text())
    except (OSError, ValueError) as error:
        raise UserError(
            f"{folder}: no sweep to read ({error}); make one with experiments.scaling"
        ) from None


if __name__ == "__main__":
    sys.exit(main())
