"""Write grading/stored_lamb.json: LAMB's updates by the paper's formula, and the decay's factors.

    python -m staff.stored_lamb

They are of the numbers that grading/sandbox/pretraining_functions.py gives to a submission.
"""

import argparse
import json

from common.files import write_whole
from grading.checks.pretraining_functions import STORED
from grading.sandbox.pretraining_functions import (
    BOUNDS,
    DECAYED,
    OPTIONS,
    SIZES,
    STEPS,
    UPDATES,
    gradient,
    numbers,
)

import numpy as np


def expected() -> dict:
    """What is stored: by bounds and weight the trust ratios and the weights, and the factors."""
    lamb = [
        [bounds, name, *updates(name, *limits)]
        for bounds, limits in BOUNDS.items()
        for name in SIZES
    ]
    factors = [[warmup, [factor(step, warmup) for step in STEPS]] for warmup in (5, 0)]
    return {"lamb": lamb, "steps": list(STEPS), "factors": factors}


def updates(name: str, lowest: float, highest: float) -> tuple[list, list]:
    """(trust ratios, weights at first and after each update), in float64: algorithm 2 of LAMB."""
    x = (SIZES[name] * numbers(1.7)).float().double().numpy()
    (b1, b2), eps = OPTIONS["betas"], OPTIONS["eps"]
    m, v, ratios, weights = 0.0 * x, 0.0 * x, [], [x.flatten().tolist()]
    for t in range(1, UPDATES + 1):
        g = gradient(name, t - 1).float().double().numpy()
        m, v = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * g**2
        u = (m / (1 - b1**t)) / (np.sqrt(v / (1 - b2**t)) + eps) + DECAYED[name] * x
        both = np.linalg.norm(x), np.linalg.norm(u)
        ratios.append(float(min(highest, max(lowest, both[0] / both[1]))) if all(both) else 1.0)
        x = x - OPTIONS["lr"] * ratios[-1] * u
        weights.append(x.flatten().tolist())
    return ratios, weights


def factor(step: int, warmup: int) -> float:
    """The decay's factor: 0.7 for every 10 updates after the warm-up."""
    return step / warmup if step < warmup else 0.7 ** ((step - warmup) / 10)


if __name__ == "__main__":
    argparse.ArgumentParser(
        prog="python -m staff.stored_lamb", description=(__doc__ or "").splitlines()[0]
    ).parse_args()
    write_whole(STORED, json.dumps(expected(), indent=1) + "\n")
    print(f"wrote {STORED.name}")
