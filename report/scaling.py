"""A cost model of an iteration: calibrated on a sweep's cells, checked on the rest, extrapolated.

    python -m report.scaling runs/sweep

Of a worker's batch of b examples, gradients of S bytes and links that carry B bytes per second each
way, N workers, the latency-bandwidth ("alpha-beta") model has

    compute          f + e b                      seconds, on a machine of one's own
    gather+scatter   2 (N-1) (S/B + a k)          all through rank 0's link, in k buckets
    ring all_reduce  2 (N-1) (S/(N B) + a k)      a piece of 1/N per message
    DDP              each bucket's ring as soon as its gradients are there, under the backward pass

and each worker spends c S seconds of its cores' time on handling what it sends and receives. In the
lab all workers share this machine's cores, so that compute and handling take N times as long.

Sources: Thakur, Rabenseifner, Gropp, "Optimization of Collective Communication Operations in
MPICH", 2005 (the alpha-beta model); Patarasu and Yuan, "Bandwidth optimal all-reduce algorithms for
clusters of workstations", 2009 (the ring); Li et al., "PyTorch Distributed", VLDB 2020 (buckets and
overlap).
"""

import argparse
import json
import statistics
import sys
from dataclasses import dataclass, replace
from pathlib import Path

from cluster.lab_network import bits_per_second
from common.buckets import BUCKET_BYTES
from common.errors import UserError
from common.record import write_whole
from report.scaling_figures import figures, measured_cells, waiting

import numpy
from scipy.optimize import nnls

DDP_FIRST, DDP_BUCKET = 2**20, 25 * 2**20  # bytes: DistributedDataParallel's defaults
GRID = [2**power for power in range(11)]  # workers: 1 to 1,024
RATES = ("1gbit", "10gbit", "25gbit", "100gbit", "400gbit")
EFFICIENT = 0.8


def bytes_per_second(rate):
    """1gbit -> 125e6."""
    return bits_per_second(rate) / 8


@dataclass(frozen=True)
class Model:
    """The calibrated costs of one model on one kind of machine, in seconds."""

    fixed: float  # f: of an iteration, whatever the batch (the update above all)
    example: float  # e: of each example
    latency: float  # a: of each message
    line: float  # of a byte, as a multiple of 1/B: headers, and what shaping costs
    handling: float  # c: of a byte of gradients, on the worker's cores
    forward: float  # the share of the compute time that is before the backward pass
    backward: float  # the share of the backward pass
    gradient_bytes: int
    embedding_bytes: int  # of these, in the embedding, whose gradients come last

    def compute(self, batch):
        """Seconds of an iteration without synchronisation."""
        return self.fixed + self.example * batch

    def network(self, task, workers, rate, size=None):
        """Seconds that the network takes to average `size` bytes (default: all gradients)."""
        size = self.gradient_bytes if size is None else size
        pieces, messages = network_terms(task, workers, size)
        return self.line * pieces / bytes_per_second(rate) + self.latency * messages

    def seconds(self, task, workers, batch, rate, sharing=1):
        """Seconds of an iteration; `sharing` workers share one machine's cores."""
        compute = sharing * self.compute(batch)
        if workers == 1:
            return compute
        handling = sharing * self.handling * self.gradient_bytes
        if task != "3":
            return compute + handling + self.network(task, workers, rate)
        return max(compute + handling, self.overlapped(workers, compute, rate) + handling)

    def overlapped(self, workers, compute, rate):
        """Seconds of an iteration of DDP: the network works on a bucket once it is ready."""
        rest = compute * (1 - self.forward - self.backward)
        start, sent = compute * self.forward, 0
        backward, done = compute * self.backward, start
        early = self.gradient_bytes - self.embedding_bytes
        while sent < self.gradient_bytes:
            size = min(DDP_BUCKET if sent else DDP_FIRST, self.gradient_bytes - sent)
            sent += size
            share = min(1.0, sent / early) if sent <= early else 1.0
            done = max(done, start + share * backward) + self.network("3", workers, rate, size)
        return max(done, start + backward) + rest

    def efficiency(self, task, workers, batch, rate):
        """Of one worker's examples per second, the share that each of many reaches."""
        return self.compute(batch) / self.seconds(task, workers, batch, rate)


def network_terms(task, workers, size):
    """(bytes through the busiest link one after the other, messages one after the other)."""
    bucket = DDP_BUCKET if task == "3" else BUCKET_BYTES
    buckets, others = -(-size // bucket), workers - 1
    if task == "2a":
        return 2 * others * size, 2 * others * buckets
    return 2 * others / workers * size, 2 * others * buckets


def calibrate(cells):
    """The Model from a few cells, and those cells: one worker's, and 2a's and 2b's at one rate.

    The rate is the middle one, the workers are the fewest and the most, the batch the smallest.
    Least squares of the relative errors, no cost below 0. Raises UserError where cells are missing.
    """
    alone = [cell for cell in cells if cell["workers"] == 1]
    many = [cell for cell in cells if cell["workers"] > 1 and cell["task"] in ("2a", "2b")]
    if len({cell["batch"] for cell in alone}) < 2 or not many:
        raise UserError(
            "to calibrate, a sweep needs one worker at two batch sizes, and tasks 2a and 2b with "
            "more: let --workers hold 1 and a larger number, such as 1,2,4"
        )
    rates = sorted({cell["rate"] for cell in many}, key=bytes_per_second)
    ends = {pick(cell["workers"] for cell in many) for pick in (min, max)}
    least = min(cell["batch"] for cell in many)
    used = [
        cell
        for cell in many
        if (cell["rate"], cell["batch"]) == (rates[(len(rates) - 1) // 2], least)
        and cell["workers"] in ends
    ]
    fixed, example = fit(
        [(1.0, cell["batch"]) for cell in alone], [cell["seconds"]["total"] for cell in alone]
    )
    rows = []
    for cell in used:
        size, workers = cell["gradient_bytes"], cell["workers"]
        pieces, messages = network_terms(cell["task"], workers, size)
        rows.append((messages, pieces / bytes_per_second(cell["rate"]), workers * size))
    latency, line, handling = fit(rows, [cell["seconds"]["sync"] for cell in used])
    one = max(alone, key=lambda cell: cell["batch"])
    share = {phase: seconds / one["seconds"]["total"] for phase, seconds in one["seconds"].items()}
    return Model(
        fixed=fixed,
        example=example,
        latency=latency,
        line=line,
        handling=handling,
        forward=share["data"] + share["forward"],
        backward=share["backward"],
        gradient_bytes=one["gradient_bytes"],
        embedding_bytes=one["embedding_bytes"],
    ), [*alone, *used]


def fit(rows, times):
    """The costs, none negative, whose sums with `rows` come closest to `times`, relatively."""
    weights = 1 / numpy.array(times)
    costs, _ = nnls(numpy.array(rows, dtype=float) * weights[:, None], times * weights)
    return map(float, costs)


def check(model, cells):
    """A row for every cell of several workers: measured, predicted, and what limits it.

    Here all share one machine's cores: a cell tells of the network where that takes at least half
    of the time that is predicted.
    """
    rows = []
    for cell in cells:
        task, workers, rate = cell["task"], cell["workers"], cell["rate"]
        predicted = model.seconds(task, workers, cell["batch"], rate, sharing=workers)
        network = model.network(task, workers, rate)
        measured = cell["seconds"]["total"]
        rows.append(
            {
                **{name: cell[name] for name in ("task", "workers", "batch", "rate")},
                "measured": measured,
                "predicted": predicted,
                "error": predicted / measured - 1,
                "limit": "network" if network >= predicted / 2 else "cores",
            }
        )
    return rows


def accuracy(rows):
    """Median and largest |relative error| of the rows that the network limits; None if none are."""
    errors = [abs(row["error"]) for row in rows if row["limit"] == "network"]
    return (statistics.median(errors), max(errors)) if errors else None


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


def scaled(model, bert, encoder_bytes, speed):
    """The Model of another size of BERT, on workers `speed` times as fast as the measured one.

    An example costs in proportion to the encoder's parameters, what is fixed to all of them.
    """
    size = 4 * bert.parameters
    return replace(
        model,
        fixed=model.fixed * size / model.gradient_bytes / speed,
        example=model.example * 4 * bert.encoder / encoder_bytes / speed,
        handling=model.handling / speed,
        gradient_bytes=size,
        embedding_bytes=4 * bert.embedding,
    )


def best_workers(model, task, batch, rate):
    """The number of workers that does a total batch the fastest, of 1, 2, 4 ... 1,024."""
    able = [n for n in GRID if n <= batch]
    return min(able, key=lambda n: model.seconds(task, n, batch / n, rate))


def batch_for(model, task, workers, rate, efficiency=EFFICIENT):
    """The smallest total batch at which so many workers reach an efficiency; None if over 2^20."""
    for power in range(21):
        if model.efficiency(task, workers, 2**power, rate) >= efficiency:
            return workers * 2**power
    return None


def answers(model, batch):
    """A row per rate: what the assignment asks on scalability, by the model."""
    rows = []
    for rate in RATES:
        row = {"link": rate}
        for task in ("2a", "2b", "3"):
            best = best_workers(model, task, 1024, rate)
            row[f"{task}: best N"] = best
        for workers in (4, 64, 1024):
            for task in ("2a", "3"):
                share = model.efficiency(task, workers, batch, rate)
                row[f"{task}: N={workers}"] = f"{100 * share:.0f} %"
        for task in ("2a", "3"):
            row[f"{task}: 80 % at 64"] = batch_for(model, task, 64, rate) or "over 2^26"
        rows.append(row)
    return rows


def markdown(rows):
    """Rows (dicts) as a table."""
    lines = ["| " + " | ".join(rows[0]) + " |", "|" + " --- |" * len(rows[0])]
    return "\n".join(lines + ["| " + " | ".join(map(str, row.values())) + " |" for row in rows])


def explain(sweep, speeds, batch):
    """The calibrated costs, the check, and the extrapolation, as text."""
    cells = measured_cells(sweep)
    model, used = calibrate(cells)
    rows = check(model, [c for c in cells if c["workers"] > 1 and c not in used])
    found = accuracy(rows)
    lines = [
        f"calibrated on {len(used)} of {len(cells)} cells, {sweep['machine']['processor']}, "
        f"{sweep['machine']['cores']} cores:",
        f"  compute: {model.fixed:.3f} s + {model.example:.4f} s per example",
        f"  network: {model.latency * 1e3:.2f} ms per message, {model.line:.3f} x bytes / rate",
        f"  handling: {model.handling * 1e9:.2f} ns per byte of gradients",
        "",
        "the other cells, seconds per iteration:",
        markdown([{**row, "measured": f"{row['measured']:.3f}", "error": f"{row['error']:+.1%}",
                   "predicted": f"{row['predicted']:.3f}"} for row in rows]),
    ]  # fmt: skip
    told = (
        f"error where the network is the limit: median {found[0]:.1%}, worst {found[1]:.1%}"
        if found
        else "no cell to check the network's part on: sweep slower links or larger models"
    )
    lines += [told]
    encoder = model.gradient_bytes - model.embedding_bytes
    for bert in BERTS:
        for speed in speeds:
            lines += ["", f"{bert.name}, {4 * bert.parameters / 1e6:.0f} MB of gradients, workers "
                      f"{speed:g} times as fast as this machine (extrapolated; {told}):",
                      markdown(answers(scaled(model, bert, encoder, speed), batch))]  # fmt: skip
    lines += [
        "",
        "best N: workers (1 to 1,024) that do a total batch of 1,024 the fastest, a whole example",
        f"each at least. N=4 to 1024: efficiency with {batch} examples each. 80 % at 64: the least",
        "total batch at which 64 workers reach 80 %.",
    ]
    return "\n".join(lines)


def main(argv=None):
    """Print and write what the model says of a sweep; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("sweep", type=Path, help="--output_dir of cluster.sweep")
    parser.add_argument("--speed", type=float, action="append",
                        help="of a worker, against this machine (default: 1 and 100)")  # fmt: skip
    parser.add_argument("--batch", type=int, default=16, help="examples of each (default: 16)")
    args = parser.parse_args(argv)
    try:
        sweep = load(args.sweep)
        text = explain(sweep, args.speed or [1, 100], args.batch)
        print(text)
        write_whole(args.sweep / "scaling.md", text + "\n")
        for figure in figures(sweep, args.sweep):
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
            f"{folder}: no sweep to read ({error}); make one with cluster.sweep"
        ) from None


if __name__ == "__main__":
    sys.exit(main())
