"""A model's weights and gradients as flat buckets, each cut into one slice per rank (ZeRO)."""

import math
from collections.abc import Callable, Iterator
from typing import Any

from common.errors import RunError
from common.gradients import divide
from common.models.optimizer import is_decayed

import torch
import torch.distributed as dist
from torch.nn.utils import clip_grads_with_norm_

BUCKET = 2**20  # elements: 4 MiB in float32, so that no step's peak holds much more than a slice


class Bucket:
    """Some of a model's parameters, one after another in one flat buffer.

    `weights` is that buffer, of which every parameter is a view; it ends in zeros, so that it
    divides by the number of ranks. `slice` is this rank's part of it: a parameter for the
    optimizer, whose `.grad` is what `reduce_gradients` leaves of the bucket's gradients.
    """

    def __init__(self, named: list[tuple[str, torch.nn.Parameter]], world, reduce_gradients):
        self.name = named[-1][0]
        self.names = {p: name for name, p in named}
        self.reduce_gradients = reduce_gradients
        self.world = world
        self.size = sum(p.numel() for p in self.names)
        self.weights = self.empty()
        for p, view in self.views(self.weights):
            view.copy_(p.data)
            p.data = view
        self.slice: Any = torch.nn.Parameter(self.weights.chunk(world.size)[world.rank])
        self.slice.whole_size = self.size
        self.waiting = set(self.names)
        for p in self.names:
            p.register_post_accumulate_grad_hook(self.take)

    def empty(self) -> torch.Tensor:
        """A flat buffer for the bucket, of zeros."""
        p = next(iter(self.names))
        part = math.ceil(self.size / self.world.size)
        return torch.zeros(part * self.world.size, dtype=p.dtype, device=p.device)

    def views(self, buffer: torch.Tensor) -> Iterator[tuple[Any, torch.Tensor]]:
        """Each parameter, and its part of a flat buffer."""
        sizes = [p.numel() for p in self.names]
        parts = buffer[: self.size].split(sizes)
        for p, part in zip(self.names, parts, strict=True):
            yield p, part.view_as(p)

    def take(self, p: Any) -> None:
        """Note that a gradient is ready; with the last one, reduce them and free them."""
        self.waiting.discard(p)
        if self.waiting:
            return
        gradients = self.empty()
        for held, view in self.views(gradients):
            view.copy_(held.grad)
            held.grad = None
        mine = self.reduce_gradients(gradients, self.world)
        self.slice.grad = mine if self.slice.grad is None else self.slice.grad + mine
        self.waiting = set(self.names)


class Shards:
    """A model's trained weights in buckets, as the optimizer sees them: one slice of each.

    `reduce_gradients(gradients, world)` is called as soon as all gradients of a bucket are ready,
    while the backward pass goes on: it gets them as one flat tensor, whose length divides by the
    world size, and returns their mean over the ranks for this rank's slice.
    """

    def __init__(self, model, world, reduce_gradients: Callable):
        self.buckets = [Bucket(named, world, reduce_gradients) for named in in_buckets(model)]

    def named_parameters(self) -> Iterator[tuple[str, torch.nn.Parameter]]:
        """This rank's slices, each under the name of a parameter in it, for the optimizer."""
        for bucket in self.buckets:
            yield bucket.name, bucket.slice

    def gradients(self) -> list[torch.Tensor]:
        """The gradients of this rank's slices; raises RunError where the loss misses a weight."""
        for bucket in self.buckets:
            if bucket.slice.grad is None:
                missing = ", ".join(bucket.names[p] for p in bucket.waiting)
                raise RunError(
                    f"the loss does not reach these weights, so they cannot be sharded: {missing}"
                )
        return [bucket.slice.grad for bucket in self.buckets]


# SOLUTION(zero1): clip by the norm of all ranks' slices together
def clip_grad_norm(shards: Shards, max_norm: float) -> None:
    """Scale the gradients down, if the norm of all ranks' slices together is above `max_norm`."""
    squares = torch.stack([gradient.square().sum() for gradient in shards.gradients()]).sum()
    dist.all_reduce(squares)
    clip_grads_with_norm_([p for _, p in shards.named_parameters()], max_norm, squares.sqrt())


# SOLUTION(zero1): give every rank the slices that the others have updated
def gather_weights(shards: Shards) -> None:
    """Make the weights of every rank those that each rank has updated in its own slices."""
    for bucket in shards.buckets:
        dist.all_gather_single(bucket.weights, bucket.slice.detach())


def in_buckets(model) -> Iterator[list[tuple[str, torch.nn.Parameter]]]:
    """Divide the trained parameters into buckets, in the order in which their gradients come.

    A bucket has one weight decay, so that its slice is one parameter of the optimizer.
    """
    named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    for decayed in (True, False):
        yield from divide([each for each in named if is_decayed(each[0]) is decayed], BUCKET)
