"""Where the time of an iteration goes, taken by hooks on the model and the optimizer."""

import time
from typing import Any

from common.models.stage import Stage
from common.record.format import PHASES
from common.sharded_state import is_slice

import torch


class Clock:
    """Seconds of one iteration by phase, and what its forward passes returned.

    `backward` ends with the last gradient. What follows until the optimizer's step is `sync` where
    there are several workers: averaging by hand, or what DistributedDataParallel still waits for,
    and clipping; for a stage of a pipeline, also its waiting for other stages. One worker has
    nothing to synchronize: its clipping counts as `update`. Where weights are sharded by hand, all
    that the workers wait for each other is `sync`: when a bucket's gradients are reduced, which is
    within the backward pass, and when the weights are gathered, after the update.

    On a GPU every phase but `backward` ends with a CPU-GPU sync point; where `backward` ends is
    measured by a CUDA event.
    """

    def __init__(self, world, model, optimizer):
        self.cuda = world.device.type == "cuda"
        self.staged = isinstance(model, Stage)
        self.after_gradients = "sync" if world.size > 1 else "update"
        self.seconds: dict[str, float] = dict.fromkeys(PHASES, 0.0)
        self.outputs = []
        self.last = 0.0  # when the last phase ended
        self.last_gradient = None  # when the newest gradient was ready; None before the first
        self.gradient_came = 0.0  # when it was computed
        self.reducing = 0.0  # seconds that workers have waited within the backward pass
        trained = (p for group in optimizer.param_groups for p in group["params"])
        self.sharded = world.size > 1 and any(map(is_slice, trained))
        self.event = torch.cuda.Event(enable_timing=True) if self.cuda else None
        for stage in getattr(model, "chunks", [model]):
            inner: Any = getattr(stage, "module", stage)  # even if a wrapper is not called
            inner.register_forward_pre_hook(self.before_forward)
            inner.register_forward_hook(self.after_forward)
        for p in model.parameters():
            if p.requires_grad:
                p.register_post_accumulate_grad_hook(self.after_gradient)
            if p.requires_grad and self.sharded:
                p.register_hook(self.before_gradient)
        optimizer.register_step_pre_hook(self.before_update)
        if self.sharded:
            optimizer.register_step_post_hook(lambda *_: self.lap("update"))

    def start(self):
        """Begin an iteration."""
        self.seconds = dict.fromkeys(PHASES, 0.0)
        self.outputs = []
        self.last = self.now()

    def lap(self, phase):
        """Count the time since the last phase ended as `phase`."""
        now = self.now()
        self.seconds[phase] += now - self.last
        self.last = now

    def end(self):
        """End an iteration."""
        self.lap("sync" if self.sharded else "update")

    def now(self):
        """Seconds on the clock, once the GPU has finished what it was given."""
        if self.cuda:
            torch.cuda.synchronize()
        return time.perf_counter()

    def before_forward(self, module, _):
        """With accumulated gradients the pass before has to be closed first."""
        if module.training:
            self.end_backward()
        if module.training and self.staged:
            self.lap("sync")

    def after_forward(self, module, _, output):
        """The forward pass ends; what it returned is kept."""
        if module.training:
            self.lap("forward")
            self.outputs.append(output)
        if module.training and self.staged:
            last = output.logits if output.loss is None else output.loss
            last.register_hook(self.before_backward)

    def before_backward(self, _):
        """A stage has the gradients of its outputs."""
        self.end_backward()
        self.lap("sync")

    def before_gradient(self, _):
        """A gradient of sharded weights has been computed; it may complete a bucket."""
        self.gradient_came = time.perf_counter()

    def after_gradient(self, _):
        """Note when a gradient is ready: the last one to do so ends the backward pass."""
        if self.event:
            self.event.record()
        self.last_gradient = time.perf_counter()
        if self.sharded:
            self.reducing += self.last_gradient - self.gradient_came

    def before_update(self, *_):
        """The optimizer's step begins."""
        self.end_backward()

    def end_backward(self):
        """Divide the time since the forward pass at its last gradient."""
        if self.last_gradient is None:
            return
        before = self.last
        self.lap("backward")
        waited = self.last - self.last_gradient
        if self.event:
            end = torch.cuda.Event(enable_timing=True)
            end.record()
            end.synchronize()
            waited = self.event.elapsed_time(end) / 1000
        waited = min(waited + self.reducing, self.last - before)
        self.reducing = 0.0
        self.seconds["backward"] -= waited
        self.seconds[self.after_gradients] += waited
        self.last_gradient = None
