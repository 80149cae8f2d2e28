"""Stops a run at the step in which its numbers stop being finite, and names where."""

import math

from common.errors import RunError

import torch


class FiniteNumbers:
    """Checks every loss, and every gradient as soon as it is ready, before ranks share it.

    So the rank that it comes from is the one that names it, and the others report that it failed. A
    gradient costs one more pass over it while it is in the processor's cache, and biases, which
    share the fate of their layer's matrix, cost nothing. On a GPU each check would be a CPU-GPU
    sync point, so there the gradients are checked together, before the update.
    """

    def __init__(self, world, model: torch.nn.Module, optimizer, schedule):
        self.rank = world.rank
        self.cuda = world.device.type == "cuda"
        self.optimizer = optimizer
        self.schedule = schedule
        inner = getattr(model, "module", model)  # even if a wrapper is not called
        self.names = {p: name for name, p in inner.named_parameters() if p.requires_grad}
        inner.register_forward_hook(self.check_loss)
        for p in self.names:
            if not self.cuda and p.dim() > 1:
                p.register_post_accumulate_grad_hook(self.check_gradient)
        if self.cuda:
            optimizer.register_step_pre_hook(self.check_gradients)

    def check_loss(self, module, _, output):
        """Raise RunError if the loss of a training step is not finite."""
        loss = getattr(output, "loss", None)
        if not module.training or loss is None or loss.isfinite():
            return
        bad = (name for p, name in self.names.items() if not is_finite(p))
        name = next(bad, "")
        first = f"the first weight that is not finite is {name}" if name else "all weights are"
        self.stop(f"the loss is {loss.item()} ({first})")

    def check_gradient(self, p):
        """Raise RunError if a gradient is not finite."""
        if not math.isfinite(p.grad.sum().item()):
            self.stop(f"the gradient of {self.names[p]} is not finite")

    def check_gradients(self, *_):
        """Raise RunError for the first of all gradients that is not finite: one sync point."""
        sums = {p: p.grad.sum() for p in self.names if p.grad is not None}
        totals = torch.stack(list(sums.values())).tolist()
        for p, total in zip(sums, totals, strict=True):
            if not math.isfinite(total):
                self.check_gradient(p)

    def stop(self, what):
        rate = self.optimizer.param_groups[0]["lr"]
        raise RunError(
            f"rank {self.rank}, step {self.schedule.step + 1}: {what}; the learning rate was "
            f"{rate:g}. Lower --learning_rate, add --warmup_steps, or check the data and the "
            "checkpoint; --allow_nan goes on nevertheless"
        )


def is_finite(tensor):
    """Whether all elements are finite: their sum is, in one pass and without a copy."""
    return math.isfinite(tensor.detach().sum().item())
