"""Learning-rate schedules: what the rate is multiplied by in each update, from update 0 on."""

import math
from collections.abc import Callable

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR


def warm_up(step: int, warmup: int, kind: str = "linear") -> float:
    """How far the rate has risen: linearly, or with the logarithm, which rises early."""
    if step >= warmup:
        return 1.0
    return step / warmup if kind == "linear" else math.log(step + 1) / math.log(max(2, warmup))


def constant(warmup: int, total: int, kind: str = "linear") -> Callable[[int], float]:
    """A warm-up, and then the full rate: DeepSpeed's WarmupLR."""
    del total
    return lambda step: warm_up(step, warmup, kind)


def linear(warmup: int, total: int, kind: str = "linear") -> Callable[[int], float]:
    """A warm-up, and then a straight line to 0 after `total` updates: DeepSpeed's WarmupDecayLR."""
    return lambda step: warm_up(step, warmup, kind) * min(1.0, remaining(step, warmup, total))


def polynomial(warmup: int, total: int, power: float = 0.5) -> Callable[[int], float]:
    """A warm-up, and then a power of the share of updates that is left: a power of 1 is linear."""
    return lambda step: warm_up(step, warmup) * min(1.0, remaining(step, warmup, total)) ** power


# SOLUTION(task8): return a function: the warm-up times the decay since it ended
def warmup_linear_decay_exp(
    warmup: int, total: int, decay_rate: float, decay_step: float
) -> Callable[[int], float]:
    """A linear warm-up, and then `decay_rate` for every `decay_step` updates: exponential decay.

    DeepSpeed's schedule of BERT's pre-training. Its own code has a rate of 1 for ever if there is
    no warm-up; this one decays.
    """
    del total
    return lambda step: warm_up(step, warmup) * decay_rate ** max(0.0, (step - warmup) / decay_step)


def remaining(step: int, start: int, total: int) -> float:
    """The share of the updates from `start` to `total` that is left; 0 after them."""
    return max(0, total - step) / max(1, total - start)


def scheduler_of(
    optimizer: Optimizer, factor: Callable[[int], float], lowest: float = 0.0
) -> LambdaLR:
    """The scheduler that multiplies every group's rate by `factor(step)`, above `lowest`.

    `lowest` is a learning rate: the factor moves the rate between it and the group's own.
    """
    base = [lowest / group["lr"] if group["lr"] else 0.0 for group in optimizer.param_groups]
    return LambdaLR(optimizer, [lambda n, low=low: low + (1 - low) * factor(n) for low in base])
