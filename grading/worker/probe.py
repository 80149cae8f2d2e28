"""Hooks inside a worker that log its rows, losses, gradients, weights and collectives.

The submission is not edited: torch's own hooks are used. A line of JSON per event, which
grading/checks/reader.py reads.
"""

import inspect
import json
import os
import time
import zlib
from functools import partial
from typing import TextIO

from common.sharded_state import local, parameters_of
from grading.worker.collectives import log_collectives
from grading.worker.parts import (
    among_zeros,
    held_bytes,
    is_piece,
    outside,
    parts_of,
    ranges,
    size_of,
    sketches,
)
from grading.worker.sketch import checksum, magnitudes, pack, sketch

import numpy as np
import torch
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

ROWS = ("input_ids", "attention_mask", "token_type_ids", "labels", "next_sentence_label")

MOMENTS = ("exp_avg", "exp_avg_sq")
MOST_LOSSES = 8  # that a model returns apart


class Probe:
    """One worker's probe. `file` takes the lines; `root` is the submission's folder.

    With `learning_rate` every optimizer's step becomes one of plain gradient descent, so that
    errors of scale, which AdamW would hide, show in the weights. `pause` seconds are spent in the
    very first forward pass, so that a mean time that counts it stands out. After `steps` updates,
    if not 0, the process ends.
    """

    def __init__(
        self,
        file: TextIO,
        root: str,
        learning_rate: float | None = None,
        pause: float = 0.0,
        steps: int = 0,
    ):
        self.file = file
        self.root = root
        self.learning_rate = learning_rate
        self.pause = pause
        self.steps = steps
        self.updates = 0
        self.moments = 0  # the checksum of the optimizer's, before its update
        self.model = None
        self.named = {}  # the model's parameters
        self.parts = set()  # ids of the modules that belong to a model
        self.known = None  # checksums of the weights that were logged last
        self.saved = []  # (parameter, its value before the update)
        self.backwards = 0  # backward passes under way
        self.entered = 0.0
        self.arrived = np.zeros(3)  # magnitudes of the gradients of the backward pass under way
        self.local = np.zeros((0, 0))  # sketches of the same, by parameter
        self.squares = 0.0  # their squared norm
        self.spent = 0.0  # seconds that magnitudes took since the last backward pass ended
        self.kept = []  # registrations, which end when they are collected

    def install(self) -> None:
        """Hook into torch, for as long as the process lives."""
        register_module_forward_pre_hook(self.before_forward)
        register_module_forward_hook(self.after_forward, with_kwargs=True)
        register_optimizer_step_pre_hook(self.before_step)
        register_optimizer_step_post_hook(self.after_step)
        self.hook_backward()
        self.kept.append(log_collectives(self.log, self.facts_of, self.root))

    def log(self, event: str, **facts) -> None:
        """Write an event's line, whole."""
        self.file.write(json.dumps({"event": event, **facts}) + "\n")
        self.file.flush()

    def before_forward(self, module, _):
        """Find the model: the first module with parameters that is called, or what it wraps."""
        if module is self.model:
            self.entered = time.perf_counter()
        if id(module) in self.parts or next(module.parameters(), None) is None:
            return
        wrapped = isinstance(module, DistributedDataParallel)
        model = inner_model(module.module if wrapped else module)
        self.parts |= {id(part) for part in (module, *module.modules())}
        first, self.model = self.model is None, model
        self.named = dict(model.named_parameters())
        weights = list(self.named.values())
        self.log(
            "model",
            ddp=wrapped,
            names=list(self.named),
            sizes=[size_of(p) for p in weights],
            pieces=[is_piece(p) for p in weights],
            parts=ranges(weights, parts_of(weights)),
        )
        self.log_weights("weights")
        self.local = np.stack([sketch(torch.zeros(1)) for _ in self.named])
        for at, p in enumerate(self.named.values()):
            if p.requires_grad and self.learning_rate is not None:
                p.register_hook(partial(self.arrive, at, p))
        self.entered = time.perf_counter()
        if first and self.pause:
            time.sleep(self.pause)

    def after_forward(self, module, args, kwargs, output):
        """Log the rows that the model read, and the loss and predictions that it returned."""
        if module is not self.model:
            return
        self.log_weights("weights")
        rows = read_rows(module, args, kwargs)
        loss, logits = loss_and_logits(output, "labels" in rows)
        found = isinstance(logits, torch.Tensor)
        self.log(
            "forward",
            grad=torch.is_grad_enabled(),
            span=[self.entered, time.perf_counter()],
            training=all(part.training for part in module.modules()),
            rows=rows,
            loss=number(loss),
            losses=numbers(loss),
            outputs=logits.numel() if found else 0,
            logits=pack(logits.detach().float().cpu().numpy())
            if found and logits.dim() == 2  # a stage that is not the last has activations
            else None,
        )

    def facts_of(self, tensors) -> dict:
        """What is logged of a collective besides the call itself."""
        return {"backward": self.backwards > 0, "content": self.measure(tensors)}

    def measure(self, tensors) -> list[float] | None:
        """The magnitudes of tensors; None where times count, or where there are no tensors."""
        if self.learning_rate is None or not tensors:
            return None
        start = time.perf_counter()
        found = magnitudes(tensors).tolist()
        self.spent += time.perf_counter() - start
        return found

    def arrive(self, at, p, gradient):
        """Take a parameter's gradient into account before anything is done with it."""
        self.arrived += magnitudes([gradient])
        self.local[at] += sketch(among_zeros(p, gradient))
        self.squares += float(torch.linalg.vector_norm(gradient, dtype=torch.float64)) ** 2

    def held(self) -> list[torch.Tensor]:
        """The gradients that there are, or this rank's parts of them."""
        return [local(p.grad) for p in self.named.values() if p.grad is not None]

    def log_weights(self, event):
        """Log the weights, if they have changed since they were logged last."""
        held = list(self.named.values())
        sums = [checksum(local(p)) for p in held]
        if sums != self.known:
            self.known = sums
            self.log(event, weights=pack(sketches(held, parts_of(held))), checksums=sums)

    def before_step(self, optimizer, *_):
        """Log the gradients just before the update."""
        if self.model is None:
            return
        now, spent = time.perf_counter(), self.spent
        self.log_weights("weights")
        weights = list(self.named.values())
        parts = parts_of(weights, optimizer)
        held = [part.grad for part in parts if part.grad is not None]
        self.log(
            "step",
            gradients=pack(sketches(weights, parts, of_gradients=True)),
            parts=ranges(weights, parts),
            norm=float(sum(torch.linalg.vector_norm(g, dtype=torch.float64) ** 2 for g in held))
            ** 0.5,
            outside=outside(parts, optimizer),
            rate=max(float(group["lr"]) for group in optimizer.param_groups),
            decay=max(float(group.get("weight_decay", 0)) for group in optimizer.param_groups),
            optimizer=type(optimizer).__module__,
            seconds=now,
            held=sum(gradient.numel() for gradient in held),
            content=self.measure(held),
            spent=spent,
        )
        self.moments = checksum_of_moments(optimizer)
        if self.learning_rate is not None:
            held = [p for group in optimizer.param_groups for p in group["params"]]
            self.saved = [(p, p.detach().clone()) for p in held if p.grad is not None]

    def after_step(self, optimizer, *_):
        """Replace the update by plain gradient descent, if asked to, and log the new weights."""
        if self.model is not None:
            self.log("memory", **held_bytes(list(self.named.values()), optimizer))
            self.log("moments", before=self.moments, after=checksum_of_moments(optimizer))
        with torch.no_grad():
            for p, before in self.saved:
                p.copy_(before - self.learning_rate * p.grad)
        self.saved = []
        if self.model is not None:
            self.log_weights("updated")
            self.updates += 1
            if self.updates == self.steps:
                os._exit(0)

    def hook_backward(self):
        """Log the number that every backward pass starts from, and when it has ended."""
        original = torch.autograd.backward

        def backward(tensors, *args, **kwargs):
            one = tensors if isinstance(tensors, torch.Tensor) else next(iter(tensors), None)
            self.log("backward", value=number(one))
            self.backwards += 1
            try:
                return original(tensors, *args, **kwargs)
            finally:
                self.backwards -= 1
                found, arrived = self.measure(self.held()), self.arrived.tolist()
                self.arrived, self.spent = np.zeros(3), 0.0
                self.log(
                    "backward_done", seconds=time.perf_counter(), content=found, arrived=arrived
                )
                if found is not None:
                    self.log("local", gradients=pack(self.local), squares=self.squares)
                    self.local, self.squares = 0 * self.local, 0.0

        torch.autograd.backward = backward  # Tensor.backward calls it by this name


def inner_model(module) -> torch.nn.Module:
    """What takes the rows in a module that passes them on to one other, or the module itself."""
    inner = module
    while not takes_rows(inner):
        children = [one for one in inner.children() if next(one.parameters(), None) is not None]
        if len(children) != 1 or next(inner.parameters(recurse=False), None) is not None:
            return module
        (inner,) = children
    return inner


def takes_rows(module) -> bool:
    """Whether token ids are an argument of a module's own."""
    try:
        return ROWS[0] in inspect.signature(module.forward).parameters
    except (TypeError, ValueError):
        return False


def read_rows(module, args, kwargs) -> dict[str, list]:
    """The tensors in a call of the model that describe its rows, packed."""
    try:
        given = inspect.signature(module.forward).bind(*args, **kwargs).arguments
    except TypeError:
        given = kwargs
    return {
        name: pack(value.detach().cpu().numpy())
        for name in ROWS
        if isinstance(value := given.get(name), torch.Tensor)
    }


def loss_and_logits(output, labeled: bool) -> tuple:
    """What a model returned, as an object or a tuple; a tuple starts with the loss if `labeled`."""
    sequence = list(output) if isinstance(output, (tuple, list)) else []
    loss = getattr(output, "loss", sequence[0] if sequence and labeled else None)
    logits = getattr(output, "logits", None)
    if logits is None and sequence:
        logits = sequence[1] if labeled and len(sequence) > 1 else sequence[0]
    return loss, logits


def checksum_of_moments(optimizer) -> int:
    """A checksum of Adam's moments of all parameters; 0 where there are none yet."""
    states = [optimizer.state.get(p, {}) for p in parameters_of(optimizer)]
    sums = [checksum(local(s[name])) for s in states for name in MOMENTS if name in s]
    return zlib.crc32(json.dumps(sums).encode()) if sums else 0


def numbers(value) -> list[float] | None:
    """The values of a tensor of a few elements; None for anything else."""
    few = isinstance(value, torch.Tensor) and value.dim() == 1 and value.numel() <= MOST_LOSSES
    return value.tolist() if few else None


def number(value) -> float | None:
    """The value of a tensor of one element; None for anything else."""
    return value.item() if isinstance(value, torch.Tensor) and value.numel() == 1 else None
