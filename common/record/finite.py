"""Stops a run at the step in which its numbers stop being finite, and names where."""

import math
from functools import partial

from common.errors import RunError
from common.sharded_state import local

import torch
from torch.distributed.tensor import DTensor


class FiniteNumbers:
    """Checks every loss, and every gradient as soon as it is ready, before ranks share it.

    So the rank that it comes from is the one that names it, and the others report that it failed. A
    gradient costs one more pass over it while it is in the processor's cache, and biases, which
    share the fate of their layer's matrix, cost nothing. On a GPU each check would be a CPU-GPU
    sync point, so there the gradients are checked together, before the update; and so are those of
    FSDP, which no parameter's hook sees.
    """

    def __init__(self, world, model: torch.nn.Module, optimizer, schedule):
        self.rank = world.rank
        self.optimizer = optimizer
        self.schedule = schedule
        inner = getattr(model, "module", model)  # even if a wrapper is not called
        self.names = {p: name for name, p in inner.named_parameters() if p.requires_grad}
        inner.register_forward_hook(self.check_loss)
        together = world.device.type == "cuda" or any(isinstance(p, DTensor) for p in self.names)
        for p, name in self.names.items():
            if not together and p.dim() > 1:
                p.register_hook(partial(self.check_gradient, name))
        if together:
            optimizer.register_step_pre_hook(self.check_gradients)

    def check_loss(self, module, _, output):
        """Raise RunError if the loss of a training step is not finite."""
        loss = getattr(output, "loss", None)
        if not module.training or loss is None or loss.isfinite().all():
            return
        bad = (name for p, name in self.names.items() if not is_finite(p))
        name = next(bad, "")
        first = f"the first weight that is not finite is {name}" if name else "all weights are"
        self.stop(f"the loss is {loss.sum().item()} ({first})")

    def check_gradient(self, name, gradient):
        """Raise RunError if a gradient is not finite."""
        if not is_finite(gradient):
            self.stop(f"the gradient of {name} is not finite")

    def check_gradients(self, *_):
        """Raise RunError for the first of all gradients that is not finite: one sync point."""
        sums = {p: local(p.grad).sum() for p in self.names if p.grad is not None}
        totals = torch.stack(list(sums.values())).tolist()
        for p, total in zip(sums, totals, strict=True):
            if not math.isfinite(total):
                self.check_gradient(self.names[p], p.grad)

    def stop(self, what):
        rate = self.optimizer.param_groups[0]["lr"]
        raise RunError(
            f"rank {self.rank}, step {self.schedule.step + 1}: {what}; the learning rate was "
            f"{rate:g}. Lower --learning_rate, add --warmup_steps, or check the data and the "
            "checkpoint; --allow_nan goes on nevertheless"
        )


def is_finite(tensor):
    """Whether all elements are finite: their sum is, in one pass and without a copy."""
    return math.isfinite(local(tensor.detach()).sum().item())
