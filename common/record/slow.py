"""Pretends that a worker is slower than it is, so that one machine can stand for several."""

import time
from typing import Any

from common.uneven import numbers

LEAST_SECONDS = 0.001  # shorter sleeps are saved up: the system's timer is no finer


class Slowdown:
    """Makes forward and backward passes `factor` times as long, by real sleeping.

    It sleeps after the forward pass and between gradients, as they become ready: what overlaps with
    the backward pass goes on meanwhile, as on a slower processor. On a CPU it goes by the time that
    the processor has spent on it, so that other work on the machine does not count many times.
    """

    def __init__(self, model, factor, now):
        self.factor = factor
        self.now = now
        self.since = 0.0
        self.owed = 0.0
        inner: Any = getattr(model, "module", model)  # even if a wrapper is not called
        inner.register_forward_pre_hook(self.begin)
        inner.register_forward_hook(self.sleep)
        for p in inner.parameters():
            if p.requires_grad:
                p.register_post_accumulate_grad_hook(self.sleep)

    def begin(self, *_):
        """A forward pass begins."""
        self.since = self.now()

    def sleep(self, *_):
        """Sleep in proportion to what was computed since the last call."""
        self.owed += (self.factor - 1) * (self.now() - self.since)
        if self.owed > LEAST_SECONDS:
            time.sleep(self.owed)
            self.owed = 0.0
        self.since = self.now()


def slow_down(args, world, model):
    """Slow a worker down as --slow asks."""
    factor = numbers("slow", args.slow, float, 1)[world.rank] if args.slow else 1.0
    if factor > 1:
        on_gpu = world.device.type == "cuda"
        Slowdown(model, factor, time.perf_counter if on_gpu else time.thread_time)
