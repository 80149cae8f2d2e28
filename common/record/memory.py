"""Bytes that one worker holds: counted from tensors' storages, and the process's peak."""

import contextlib
import json
import resource
import sys
from collections.abc import Iterable
from pathlib import Path

from common.files import write_whole
from common.sharded_state import local, parameters_of

import torch
from torch.autograd.graph import saved_tensors_hooks

HELD = ("weights", "gradients", "optimizer_state")


class Memory:
    """The memory of one rank's training, as `memory.rank<R>.json` has it.

    Weights, gradients and optimizer state are what is held after the first update, activations what
    the first forward pass has saved for its backward pass, in bytes; a storage that several tensors
    share counts once. `peak` is the most that the process, or on a GPU its allocator, has held
    since the first forward pass: on a CPU with the libraries and the data.
    """

    def __init__(self, world, model: torch.nn.Module, optimizer: torch.optim.Optimizer):
        self.rank = world.rank
        self.device = world.device
        self.model = model
        self.optimizer = optimizer
        self.bytes = {}
        self.saved = {}  # address -> bytes of the storages that the forward pass has saved
        self.held = {name: {} for name in HELD}  # the same of what is held after the first update
        self.saving = None
        inner = getattr(model, "module", model)
        self.hooks = [
            inner.register_forward_pre_hook(self.before_forward),
            inner.register_forward_hook(self.after_forward),
            optimizer.register_step_post_hook(self.after_update),
        ]

    def before_forward(self, module, _):
        """Note what is saved from here on; the first update is over where it has been counted."""
        if "weights" in self.bytes:
            for hook in self.hooks:
                hook.remove()
        if module.training and not self.bytes:
            reset_peak(self.device)
            self.saving = saved_tensors_hooks(self.note, lambda tensor: tensor)
            self.saving.__enter__()

    def note(self, tensor):
        """Count a tensor that is saved for the backward pass, unless it is of a weight."""
        whole = tensor if tensor._base is None else tensor._base
        if not isinstance(whole, torch.nn.Parameter):
            self.saved |= storages([tensor])
        return tensor

    def after_forward(self, *_):
        """Stop noting."""
        if self.saving:
            self.saving.__exit__(None, None, None)
            self.saving = None
            self.bytes["activations"] = sum(self.saved.values())

    def after_update(self, *_):
        """Count what is held after the first update, before the gradients are freed.

        DeepSpeed updates one group of weights after another, and this follows each.
        """
        held = [*self.model.parameters(), *parameters_of(self.optimizer)]
        gradients = [p.grad for p in held if p.grad is not None]
        state = [value for p in held for value in self.optimizer.state.get(p, {}).values()]
        for name, tensors in zip(HELD, (held, gradients, state), strict=True):
            self.held[name] |= storages(tensors)
            self.bytes[name] = sum(self.held[name].values())

    def write(self, folder: Path) -> None:
        """Write memory.rank<R>.json, if anything was trained."""
        if self.bytes:
            facts = {**self.bytes, "peak": peak(self.device)}
            write_whole(folder / f"memory.rank{self.rank}.json", json.dumps(facts, indent=1) + "\n")


def storages(tensors: Iterable[torch.Tensor]) -> dict[int, int]:
    """Address -> bytes of the storages of some tensors; of a DTensor, of this rank's part."""
    kept = (local(tensor).untyped_storage() for tensor in tensors)
    return {storage.data_ptr(): storage.nbytes() for storage in kept}


def reset_peak(device: torch.device) -> None:
    """Begin to look for the most memory that this process holds."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        return
    with contextlib.suppress(OSError):  # without Linux's /proc it is the peak since the start
        Path("/proc/self/clear_refs").write_text("5")


def peak(device: torch.device) -> int:
    """The most bytes that this process has held since `reset_peak`."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024
