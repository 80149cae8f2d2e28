"""Told from inside a worker, as it happens: its rows, losses, gradients, weights, collectives.

The submission is not edited: torch's own hooks are used, and the dispatcher's for collectives, so
that DistributedDataParallel's show too. A line of JSON per event, for grading/checks/reader.py.
"""

import contextlib
import inspect
import json
import os
import sys
import time

from grading.worker.sketch import checksum, pack, sketch

import numpy as np
import torch
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

# Collectives as the process group sees them -> which argument holds what this rank hands over.
PAYLOAD = {
    **dict.fromkeys(("allreduce_", "broadcast_", "reduce_", "scatter_", "send", "recv_"), 0),
    **dict.fromkeys(("allreduce_coalesced_", "recv_any_source_", "barrier"), 0),
    **dict.fromkeys(("gather_", "allgather_", "_allgather_base_", "reduce_scatter_"), 1),
    **dict.fromkeys(("_reduce_scatter_base_", "alltoall_", "alltoall_base_"), 1),
    **dict.fromkeys(("allgather_coalesced_", "allgather_into_tensor_coalesced_"), 1),
    **dict.fromkeys(("reduce_scatter_tensor_coalesced_",), 1),
}
ROWS = ("input_ids", "attention_mask", "token_type_ids", "labels")


class Probe:
    """One worker's probe. `file` takes the lines; `root` is the submission's folder.

    With `learning_rate` every optimizer's step becomes one of plain gradient descent: so errors of
    scale show in the weights, which AdamW would hide. `pause` seconds are spent in the very first
    forward pass, so that a mean time that counts it stands out.
    """

    def __init__(self, file, root, learning_rate=None, pause=0.0):
        self.file, self.root, self.pause = file, root + os.sep, pause
        self.learning_rate = learning_rate
        self.model, self.saved, self.known = None, [], None
        self.parts, self.backwards, self.entered = set(), 0, 0.0
        self.kept = []  # registrations, which end when they are collected

    def install(self):
        """Hook into torch, for as long as the process lives."""
        register_module_forward_pre_hook(self.before_forward)
        register_module_forward_hook(self.after_forward, with_kwargs=True)
        register_optimizer_step_pre_hook(self.before_step)
        register_optimizer_step_post_hook(self.after_step)
        self.watch_backward()
        self.watch_collectives()

    def tell(self, event, **facts):
        """Write an event's line, whole."""
        self.file.write(json.dumps({"event": event, **facts}) + "\n")
        self.file.flush()

    def before_forward(self, module, _):
        """Notice the first module with parameters that is called: it is the model."""
        if module is self.model:
            self.entered = time.perf_counter()
        if id(module) in self.parts or next(module.parameters(), None) is None:
            return
        wrapped = isinstance(module, DistributedDataParallel)
        model = module.module if wrapped else module
        self.parts |= {id(part) for part in (module, *module.modules())}
        first, self.model = self.model is None, model
        self.named = dict(model.named_parameters())
        self.tell(
            "model",
            ddp=wrapped,
            names=list(self.named),
            sizes=[p.numel() for p in self.named.values()],
        )
        self.tell_weights("weights")
        self.entered = time.perf_counter()
        if first and self.pause:
            time.sleep(self.pause)

    def after_forward(self, module, args, kwargs, output):
        """Tell the rows that the model was given, and the loss and predictions that it gave."""
        if module is not self.model:
            return
        self.tell_weights("weights")
        try:
            given = inspect.signature(module.forward).bind(*args, **kwargs).arguments
        except TypeError:
            given = kwargs
        rows = {
            name: pack(value.detach().cpu().numpy())
            for name in ROWS
            if isinstance(value := given.get(name), torch.Tensor)
        }
        first = output[0] if isinstance(output, (tuple, list)) else None
        loss = getattr(output, "loss", first if "labels" in rows else None)
        logits = getattr(output, "logits", None)
        if logits is None and isinstance(output, (tuple, list)):
            logits = output[1] if "labels" in rows and len(output) > 1 else output[0]
        self.tell(
            "forward",
            grad=torch.is_grad_enabled(),
            entered=self.entered,
            training=module.training,
            rows=rows,
            loss=loss.item() if isinstance(loss, torch.Tensor) and loss.numel() == 1 else None,
            logits=pack(logits.detach().float().cpu().numpy())
            if isinstance(logits, torch.Tensor)
            else None,
        )

    def tell_weights(self, event):
        """Tell the weights, if they are not those that were told last."""
        sums = [checksum(p) for p in self.named.values()]
        if sums != self.known:
            self.known = sums
            weights = np.stack([sketch(p) for p in self.named.values()])
            self.tell(event, weights=pack(weights), checksums=sums)

    def before_step(self, optimizer, *_):
        """Tell the gradients as they stand just before the update."""
        if self.model is None:
            return
        now = time.perf_counter()
        self.tell_weights("weights")
        gradients = [p.grad for p in self.named.values()]
        zero = np.zeros_like(sketch(torch.zeros(1)))
        self.tell(
            "step",
            gradients=pack(np.stack([zero if g is None else sketch(g) for g in gradients])),
            rate=max(float(group["lr"]) for group in optimizer.param_groups),
            optimizer=type(optimizer).__module__,
            seconds=now,
        )
        if self.learning_rate is not None:
            held = [p for group in optimizer.param_groups for p in group["params"]]
            self.saved = [(p, p.detach().clone()) for p in held if p.grad is not None]

    def after_step(self, *_):
        """Make the update plain gradient descent, if asked to, and tell the new weights."""
        with torch.no_grad():
            for p, before in self.saved:
                p.copy_(before - self.learning_rate * p.grad)
        self.saved = []
        if self.model is not None:
            self.tell_weights("updated")

    def watch_backward(self):
        """Tell the number that every backward pass starts from, and when it has ended."""
        original = torch.autograd.backward

        def backward(tensors, *args, **kwargs):
            one = tensors if isinstance(tensors, torch.Tensor) else next(iter(tensors), None)
            value = one.item() if isinstance(one, torch.Tensor) and one.numel() == 1 else None
            self.tell("backward", value=value)
            self.backwards += 1
            try:
                return original(tensors, *args, **kwargs)
            finally:
                self.backwards -= 1
                self.tell("swept", seconds=time.perf_counter())

        torch.autograd.backward = backward  # Tensor.backward calls it by this name

    def watch_collectives(self):
        """Tell every collective before it starts, with the line of the submission it came from."""
        library = torch.library.Library("c10d", "IMPL")
        self.kept.append(library)
        for name, place in PAYLOAD.items():
            for key in ("AutogradCPU", "AutogradCUDA"):
                library.impl(name, self.passing(name, place), key, with_keyset=True)

    def passing(self, name, place):
        """A kernel that tells of the collective `name` and goes on to the real one."""
        operator = getattr(torch.ops.c10d, name).default

        def kernel(keyset, *args, **kwargs):
            tensors = list(flat(args[place])) if name != "barrier" else []
            self.tell(
                "collective",
                op=name.strip("_").removesuffix("_base"),
                elements=sum(t.numel() for t in tensors),
                bytes=sum(t.numel() * t.element_size() for t in tensors),
                dtype=str(tensors[0].dtype).removeprefix("torch.") if tensors else "",
                backward=self.backwards > 0,
                where=self.line(),
            )
            return operator.redispatch(keyset & torch._C._after_autograd_keyset, *args, **kwargs)

        return kernel

    def line(self):
        """The innermost line of the submission that is being run: file:line."""
        frame = sys._getframe(1)
        while frame:
            if frame.f_code.co_filename.startswith(self.root):
                return f"{frame.f_code.co_filename[len(self.root) :]}:{frame.f_lineno}"
            frame = frame.f_back
        return ""


def flat(tensors):
    """The tensors in a tensor, or in lists of them."""
    if isinstance(tensors, torch.Tensor):
        yield tensors
        return
    with contextlib.suppress(TypeError):
        for one in tensors:
            yield from flat(one)
