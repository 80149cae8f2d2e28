"""Times per iteration of many runs: a class, several machines, several commits.

    python -m staff timings RUN_DIR_OR_ZIP ... [--output_dir timings]

Each run is compared with task 1 on its own machine and, where sync_times.py has run there, with a
flat all_reduce. Ratios are of medians, with a bootstrap confidence interval (95 %); where rounds of
runs were interleaved (rounds.py), they are paired by round. Writes timings.csv and timings.html, a
self-contained page that needs no network.
"""

import argparse
import csv
import json
import sys
from collections import Counter, defaultdict
from pathlib import Path

from common.files import write_whole
from staff.timing.class_runs import load_all

import numpy
from scipy.stats import bootstrap

LEAST = 40  # iterations
RESAMPLES = 999
MOST_POOLED = 400  # iterations of task 1 to compare with: more cost time and tell little
TEMPLATE = Path(__file__).with_name("timings.html")
COLUMNS = {  # key of a row -> heading
    "name": "run",
    "task": "task",
    "machine": "machine",
    "workers": "workers",
    "iterations": "iterations",
    "median": "median, s",
    "spread": "middle half, s",
    "ratio": "/ task 1",
    "interval": "95 % interval",
    "verdict": "verdict",
    "flat": "sync / flat all_reduce",
    "flags": "not comparable",
}


def ratio_of(*samples):
    """(ratio, low, high) by bootstrap: of two samples' medians, or the median of one of ratios."""

    def statistic(*samples, axis=-1):
        medians = [numpy.median(sample, axis=axis) for sample in samples]
        return medians[0] / medians[1] if len(medians) == 2 else medians[0]

    point = float(statistic(*samples))
    if any(len(sample) < 2 or numpy.ptp(sample) == 0 for sample in samples):
        return point, float("nan"), float("nan")
    found = bootstrap(
        samples,
        statistic,
        n_resamples=RESAMPLES,
        method="percentile",
        rng=numpy.random.default_rng(1),
    ).confidence_interval
    return point, float(found.low), float(found.high)


def verdict(low, high):
    """What a ratio's interval says."""
    if not low <= high:  # there is none
        return ""
    return "slower" if low > 1 else "faster" if high < 1 else "indistinguishable"


def compare(runs, flat):
    """A row (dict by COLUMNS) for every run, and why it cannot be compared, if so."""
    usual = {
        field: Counter(getattr(run, field) for run in runs).most_common(1)[0][0]
        for field in ("total_batch", "model", "length")
    }
    alone = defaultdict(list)
    for run in runs:
        if run.task == "1" and not flags(run, usual):
            alone[run.machine].append(run)
    return [row(run, usual, alone[run.machine], flat.get(run.machine)) for run in runs]


def flags(run, usual):
    """Why a run cannot be compared with the usual ones."""
    found = [
        f"{field.replace('_', ' ')} {getattr(run, field)}, not {value}"
        for field, value in usual.items()
        if getattr(run, field) != value
    ]
    if run.steps < LEAST:
        found.append(f"{run.steps} iterations, not {LEAST}")
    if run.iterations_timed >= run.steps:
        found.append("its first iteration is included in its own mean")
    if run.threads > run.cores:
        found.append(f"{run.threads} threads on {run.cores} cores")
    return found


def row(run, usual, alone, flat):
    """What is said of one run."""
    ratio = low = high = float("nan")
    rounds = {one.round: one for one in alone}
    if run.task != "1" and run.round in rounds and run.round is not None:
        one = rounds[run.round].seconds
        ratio, low, high = ratio_of(run.seconds, one)
    elif run.task != "1" and alone:
        pool = numpy.concatenate([one.seconds for one in alone])
        ratio, low, high = ratio_of(run.seconds, pool[:: -(-len(pool) // MOST_POOLED)])
    quarters = numpy.percentile(run.seconds, [25, 75])
    return {
        "name": run.name,
        "task": run.task,
        "machine": run.machine,
        "workers": run.workers,
        "iterations": len(run.seconds),
        "median": float(numpy.median(run.seconds)),
        "spread": [float(quarter) for quarter in quarters],
        "ratio": ratio,
        "interval": [low, high],
        "verdict": verdict(low, high),
        "flat": float(numpy.median(run.sync)) / flat if flat and run.sync.any() else float("nan"),
        "flags": "; ".join(flags(run, usual)),
    }


def by_task(rows):
    """A row per task: the median of the comparable runs' ratios, and its interval over the runs.

    Where the runs come in rounds, each round has one ratio: the interval is over the rounds.
    """
    found = []
    for task in sorted({row["task"] for row in rows} - {"1"}):
        ratios = [row["ratio"] for row in rows if row["task"] == task and not row["flags"]]
        ratios = [ratio for ratio in ratios if ratio == ratio]
        if not ratios:
            continue
        ratio, low, high = ratio_of(ratios)
        found.append({"task": task, "runs": len(ratios), "ratio": ratio, "interval": [low, high],
                      "verdict": verdict(low, high)})  # fmt: skip
    return found


def shown(value):
    """A cell as text."""
    if isinstance(value, list):
        return "" if value[0] != value[0] else f"{value[0]:.3f} to {value[1]:.3f}"
    if isinstance(value, float):
        return "" if value != value else f"{value:.3f}"
    return str(value)


def printable(text):
    """Text of others without what moves a terminal's cursor."""
    return "".join(c if c.isprintable() else "?" for c in text)


def table(rows, tasks, left_out):
    """All of it as text for a terminal."""
    heads = [head for key, head in COLUMNS.items() if key != "machine"]
    cells = [[printable(shown(row[key])) for key in COLUMNS if key != "machine"] for row in rows]
    widths = [max(map(len, column)) for column in zip(heads, *cells, strict=True)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
             for line in (heads, *cells)]  # fmt: skip
    lines += ["", "task / task 1, median over the comparable runs:"]
    lines += [
        f"  {t['task']}: {t['ratio']:.3f} ({shown(t['interval']) or 'one run'}), {t['runs']} runs"
        + (f": {t['verdict']}" if t["verdict"] else "")
        for t in tasks
    ]
    if not tasks:
        lines += ["  none: no comparable run has a task 1 of its machine"]
    lines += ["", "machines:", *(f"  {printable(m)}" for m in sorted({r["machine"] for r in rows}))]
    if left_out:
        lines += ["", f"left out: {len(left_out)}"]
        lines += [f"  {printable(name)}: {printable(reason)}" for name, reason in left_out]
    return "\n".join(lines)


def inert(text):
    """Text that a spreadsheet does not take for a formula."""
    return "'" + text if text[:1] in ("=", "+", "-", "@", "\t", "\r") else text


def write_csv(path, rows):
    """The rows, with the ends of intervals in columns of their own."""
    part = path.with_name(path.name + ".part")
    with part.open("w", newline="", encoding="utf-8") as file:
        out = csv.writer(file)
        two = ("spread", "interval")
        out.writerow(
            name
            for key in COLUMNS
            for name in ([f"{key} low", f"{key} high"] if key in two else [key])
        )
        for row in rows:
            values = [v for key in COLUMNS for v in (row[key] if key in two else [row[key]])]
            out.writerow(inert(v) if isinstance(v, str) else v for v in values)
    part.replace(path)


def write_page(path, rows, tasks, left_out):
    """One HTML file with its data inside, in which no text of a record can become markup."""
    data = {"columns": COLUMNS, "rows": rows, "tasks": tasks, "left_out": left_out}
    text = json.dumps(none_for_nan(data)).replace("<", "\\u003c")
    write_whole(path, TEMPLATE.read_text(encoding="utf-8").replace('"@DATA@"', text))


def none_for_nan(value):
    """JSON knows no NaN."""
    if isinstance(value, dict):
        return {key: none_for_nan(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [none_for_nan(each) for each in value]
    return None if isinstance(value, float) and value != value else value


def main(argv=None):
    """Compare the runs; returns the exit code: 2 if there is none to compare."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", nargs="+", metavar="RUN_DIR_OR_ZIP", help="or a folder of them")
    parser.add_argument("--output_dir", type=Path, default=Path("timings"), help="default: timings")
    args = parser.parse_args(argv)
    runs, left_out, flat = load_all(args.runs)
    if not runs:
        print("staff.timing.timings: no run could be read:", file=sys.stderr)
        for name, reason in left_out:
            print(f"  {printable(name)}: {printable(reason)}", file=sys.stderr)
        return 2
    rows = compare(runs, flat)
    tasks = by_task(rows)
    print(table(rows, tasks, left_out))
    args.output_dir.mkdir(parents=True, exist_ok=True)
    write_csv(args.output_dir / "timings.csv", rows)
    write_page(args.output_dir / "timings.html", rows, tasks, left_out)
    for name in ("timings.csv", "timings.html"):
        print(f"written: {args.output_dir / name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
