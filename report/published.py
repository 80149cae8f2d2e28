"""DeepSpeed's published times of pre-training BERT-large: which links and overlap reproduce them.

    python -m report published

A step on N GPUs takes A / N + u + max(0, 2 (N - 1) / N S / B - o b(N)): computing, what does not
shrink, and the part of the all_reduce that the last micro-batch's backward pass b(N) does not hide.
A (GPU-seconds of a step) and u are fitted to the published times, for every rate B of a node's
links and overlap o; S is 2 bytes a weight. So few times cannot tell all of them apart: the table
shows how far each pair is off.

Sources: DeepSpeed's "BERT Pre-training" tutorial and its examples' bing_bert: times of 16 to 1,024
V100s, in nodes of 16 with 8 links of 100 Gbit/s; 402,679,081 samples in 24,430 steps; the older
"seed" code's 14 h on 64 and 3.7 h on 256.
"""

import argparse
import sys

from common.commands import program
from common.tables import markdown_table
from report.cluster_model import BERTS, GPUS, Bert, Gpu
from report.cost_model import bytes_per_second

STEPS, SAMPLES = 24_430, 402_679_081
HOURS = {16: 33 + 13 / 60, 64: 8 + 41 / 60, 256: 144 / 60, 1024: 44 / 60}  # GPUs -> tutorial
SEED_HOURS = {64: 14.0, 256: 3.7}
MICRO = 64  # sequences that a V100 takes at once
BACKWARD = 2 / 3  # of computing
RATES = ("100gbit", "200gbit", "400gbit", "800gbit", "1600gbit")
OVERLAPS = (0.0, 0.5, 1.0)


def exposed(gpus: int, rate: float, overlap: float, compute: float, bert: Bert, gpu: Gpu) -> float:
    """Seconds of the all_reduce that nothing hides; `compute`: GPU-seconds of a step."""
    link = gpu.inside if gpus <= gpu.node else min(rate, gpu.inside)
    network = 2 * (gpus - 1) / gpus * 2 * bert.weights / link
    of_each = SAMPLES / STEPS / gpus
    last = BACKWARD * compute / gpus * min(1.0, MICRO / of_each)
    return max(0.0, network - overlap * last)


def predicted(rate: float, overlap: float) -> tuple[dict[int, float], float]:
    """GPUs -> hours, with the A and u whose largest relative error is the least; and A."""
    from scipy.optimize import minimize

    bert, gpu = BERTS["bert-large"], GPUS["v100"]

    def hours(costs) -> dict[int, float]:
        compute, fixed = map(abs, costs)
        hidden = {n: exposed(n, rate, overlap, compute, bert, gpu) for n in HOURS}
        return {n: STEPS / 3600 * (compute / n + fixed + hidden[n]) for n in HOURS}

    def error(costs) -> float:
        return max(abs(each / HOURS[n] - 1) for n, each in hours(costs).items())

    start = (16 * HOURS[16] * 3600 / STEPS, 0.01)
    found = minimize(error, start, method="Nelder-Mead", options={"maxiter": 2000}).x
    return hours(found), abs(found[0])


def efficiency(hours: dict[int, float]) -> float:
    """The speed-up from the fewest to the most GPUs, as a share of their ratio."""
    few, many = min(hours), max(hours)
    return hours[few] / hours[many] * few / many


def report() -> str:
    """The published times, and the model's at each rate and overlap, as text."""
    rows = []
    for rate in RATES:
        for overlap in OVERLAPS:
            hours, compute = predicted(bytes_per_second(rate), overlap)
            off = max(abs(hours[n] / HOURS[n] - 1) for n in HOURS)
            times = [f"{each:.2f}" for each in hours.values()]
            each = compute / (SAMPLES / STEPS) * 1e3
            rows.append((off, [rate, f"{overlap:.0%}", *times, f"{efficiency(hours):.1%}", each]))
    heads = ["links of a node", "overlap", *(f"{n} GPUs, h" for n in HOURS), "efficiency"]
    heads += ["ms a sequence", "worst error"]
    published = ["published", "", *(f"{each:.2f}" for each in HOURS.values())]
    table = [[*published, f"{efficiency(HOURS):.1%}", "", ""]]
    table += [[*cells[:-1], f"{cells[-1]:.2f}", f"{off:.1%}"] for off, cells in sorted(rows)]
    seed = f"{SEED_HOURS[64]:g} h on 64, {SEED_HOURS[256]:g} h on 256: {efficiency(SEED_HOURS):.1%}"
    return f"{markdown_table(heads, table)}\n\nThe seed code's efficiency, {seed}."


def main(argv: list[str] | None = None) -> int:
    """Print the table; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog=program(), description="Which links and overlap reproduce DeepSpeed's published times."
    )
    parser.parse_args(argv)
    print(report())
    return 0


if __name__ == "__main__":
    sys.exit(main())
