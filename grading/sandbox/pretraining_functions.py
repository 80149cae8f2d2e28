"""Run in a submission's folder: what its LAMB and its decay do to given numbers, as JSON.

`lamb` has (bounds, weight, weights after each update), `factors` (warm-up, factors by update).
"""

import json

from common.models.lamb import Lamb
from common.models.schedules import warmup_linear_decay_exp

import torch

BOUNDS = {"wide": (0.0, 1e9), "narrow": (0.08, 0.5)}
SIZES = {"usual": 1.0, "large": 20.0, "small": 0.02, "zero": 0.0, "zero, no gradient": 0.0}
SHAPE = (3, 4)
UPDATES = 3
OPTIONS = {"lr": 0.05, "betas": (0.9, 0.99), "eps": 1e-6}
DECAYED = {"usual": 0.01, "large": 0.01, "small": 0.0, "zero": 0.01, "zero, no gradient": 0.0}
STEPS = (0, 1, 4, 5, 9, 30, 100)


def numbers(seed: float) -> torch.Tensor:
    """Numbers between -1 and 1, the same everywhere."""
    return torch.sin(torch.arange(1.0, 13.0, dtype=torch.float64) * seed).reshape(SHAPE)


def gradient(name: str, update: int) -> torch.Tensor:
    """A weight's gradient in an update."""
    scale = 0.0 if name == "zero, no gradient" else 0.3
    return scale * numbers(2.3 + update + len(name))


def lamb() -> list:
    """The weights after each update, with each pair of bounds."""
    found = []
    for bounds, (lowest, highest) in BOUNDS.items():
        held = {
            name: torch.nn.Parameter((size * numbers(1.7)).float()) for name, size in SIZES.items()
        }
        groups = [
            {"params": [(name, p)], "weight_decay": DECAYED[name]} for name, p in held.items()
        ]
        optimizer = Lamb(groups, min_coeff=lowest, max_coeff=highest, **OPTIONS)
        after = {name: [] for name in held}
        for update in range(UPDATES):
            for name, p in held.items():
                p.grad = gradient(name, update).float()
            Lamb.step(optimizer)
            for name, p in held.items():
                after[name].append(p.detach().flatten().tolist())
        found += [[bounds, name, updates] for name, updates in after.items()]
    return found


def factors() -> list:
    """The schedule's factors, with a warm-up of 5 updates and with none."""
    found = []
    for warmup in (5, 0):
        factor = warmup_linear_decay_exp(warmup, 100, 0.7, 10.0)
        found.append([warmup, [float(factor(step)) for step in STEPS]])
    return found


if __name__ == "__main__":
    print(json.dumps({"lamb": lamb(), "factors": factors()}))
