"""Which elements of a model's weights a rank's tensors are: all of them, or a part of each."""

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from common.record.memory import storages
from common.sharded_state import local, parameters_of
from grading.worker.sketch import sketch

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor, Replicate, Shard


class Part(NamedTuple):
    """Some elements of the model's tensor number `tensor`, from `start` on; `grad` may be None."""

    tensor: int
    start: int
    values: torch.Tensor
    grad: torch.Tensor | None = None


def parts_of(named: Sequence[torch.Tensor], optimizer=None) -> list[Part]:
    """What this rank holds of a model's tensors: what the optimizer updates, if that is given.

    The optimizer may have flat tensors of its own that share the weights' memory.
    """
    if optimizer is not None:
        updated = parameters_of(optimizer)
        known = {id(p) for p in named}
        found = [part for q in updated if id(q) not in known for part in shared(named, q)]
        if found:
            return found
    return [part for at, p in enumerate(named) for part in own_part(at, p)]


def own_part(at: int, p: torch.Tensor) -> Iterator[Part]:
    """What this rank holds of a tensor; nothing, if that is not some of its rows."""
    start = start_of(p)
    if start is not None:
        grad = None if p.grad is None else among_zeros(p, local(p.grad))
        yield Part(at, start, among_zeros(p, local(p).detach()), grad)


def is_piece(p: torch.Tensor) -> bool:
    """Whether a tensor is a worker's part of a matrix, as in common.models.tensor_parallel."""
    return hasattr(p, "part_dim")


def size_of(p: torch.Tensor) -> int:
    """How many elements a tensor has; of a matrix of which this is a part, those of all workers."""
    return p.numel() * (dist.get_world_size() if is_piece(p) else 1)


def among_zeros(p: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """A parameter's values, flat; those of a part of a matrix with zeros for the rest."""
    if not is_piece(p):
        return values.reshape(-1)
    dim: int = p.part_dim  # pyright: ignore[reportAttributeAccessIssue]
    rows, shape = p.shape[dim], list(p.shape)
    shape[dim] *= dist.get_world_size()
    whole = values.new_zeros(shape)
    whole.narrow(dim, rows * dist.get_rank(), rows).copy_(values)
    return whole.reshape(-1)


def shared(named: Sequence[torch.Tensor], flat: torch.Tensor) -> Iterator[Part]:
    """The parts of a model's tensors that lie in the memory of a flat tensor."""
    size = flat.element_size()
    if isinstance(flat, DTensor) or not flat.is_contiguous():
        return
    values, grad = flat.detach().reshape(-1), flat.grad
    for at, p in enumerate(named):
        if isinstance(p, DTensor) or p.dtype != flat.dtype:
            continue
        offset = (p.data_ptr() - flat.data_ptr()) // size  # of its first element, in `flat`
        first, last = max(0, offset), min(flat.numel(), offset + p.numel())
        if first < last:
            part = None if grad is None else grad.reshape(-1)[first:last]
            yield Part(at, first - offset, values[first:last], part)


def start_of(p: torch.Tensor) -> int | None:
    """The first element that this rank holds of a tensor; None if it is not cut along its rows."""
    if not isinstance(p, DTensor):
        return 0
    first, rows = 0, p.shape[0] if p.dim() else 1
    for dim, placement in enumerate(p.placements):
        if isinstance(placement, Replicate):
            continue
        if not isinstance(placement, Shard) or placement.dim:
            return None
        chunk = math.ceil(rows / p.device_mesh.size(dim))
        begin = min(rows, chunk * p.device_mesh.get_local_rank(dim))
        first, rows = first + begin, min(rows - begin, chunk)
    return first * math.prod(p.shape[1:])


def ranges(named: Sequence[torch.Tensor], parts: list[Part]) -> list | None:
    """The [first, last) elements of each tensor in some parts; None if they are whole tensors."""
    found: list[list] = [[] for _ in named]
    for part in parts:
        found[part.tensor].append([part.start, part.start + part.values.numel()])
    whole = all(part == [[0, size_of(p)]] for p, part in zip(named, found, strict=True))
    return None if whole else found


def sketches(named: Sequence[torch.Tensor], parts: list[Part], of_gradients=False) -> np.ndarray:
    """The sketches of a model's tensors, or of their gradients, with zeros for what is not held."""
    found = np.stack([sketch(torch.zeros(1)) for _ in named])
    for at, start, values, grad in parts:
        held = grad if of_gradients else values
        if held is not None and held.numel():
            found[at] += sketch(held, start, size_of(named[at]))
    return found


def outside(parts: list[Part], optimizer) -> int:
    """How many elements of what the optimizer updates have gradients, but are no weights."""
    held = [local(q.grad) for q in parameters_of(optimizer) if q.grad is not None]
    of_weights = [part.grad for part in parts if part.grad is not None]
    return max(0, nonzero(held) - nonzero(of_weights))


def nonzero(tensors: Iterable[torch.Tensor]) -> int:
    """How many elements of some tensors are not 0."""
    return sum(int(torch.count_nonzero(tensor)) for tensor in tensors)


def held_bytes(named: Sequence[torch.Tensor], optimizer) -> dict[str, int]:
    """Bytes of the storages of the weights, their gradients, and the optimizer's state."""
    held = [*named, *parameters_of(optimizer)]
    state = [value for of_one in optimizer.state.values() for value in of_one.values()]
    tensors = {
        "weights": held,
        "gradients": [p.grad for p in held if p.grad is not None],
        "optimizer_state": [value for value in state if isinstance(value, torch.Tensor)],
    }
    return {name: sum(storages(each).values()) for name, each in tensors.items()}
