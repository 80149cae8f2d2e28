"""Functions for task 6's scripts, right and wrong: slices of gradients, and their clipping."""

import torch
import torch.distributed as dist
from torch.nn.utils import clip_grads_with_norm_


def reduce_by_gloo(gradients, world):
    """Right: gloo's own reduce_scatter, which moves more bytes."""
    mine = gradients.chunk(world.size)[world.rank].clone()
    dist.reduce_scatter_single(mine, gradients, op=dist.ReduceOp.SUM)
    return mine / world.size


def summed_slice(gradients, world):
    """Wrong: nothing divides."""
    dist.all_reduce(gradients, op=dist.ReduceOp.SUM)
    return gradients.chunk(world.size)[world.rank]


def view_of_mean(gradients, world):
    """Wrong in ZeRO-2: a view keeps the whole bucket in memory."""
    parts = torch.empty_like(gradients)
    dist.all_to_all_single(parts, gradients)
    gradients.chunk(world.size)[world.rank].copy_(parts.view(world.size, -1).mean(0))
    return gradients.chunk(world.size)[world.rank]


def own_slice(gradients, world):
    """Wrong: no rank receives anything."""
    return gradients.chunk(world.size)[world.rank].clone()


def clip_by_gathered_norms(shards, max_norm):
    """Right: the norm of the ranks' norms is that of all slices."""
    mine = torch.stack([gradient.norm() for gradient in shards.gradients()]).norm()
    norms = torch.empty(dist.get_world_size())
    dist.all_gather_into_tensor(norms, mine.reshape(1))
    clip_grads_with_norm_([p for _, p in shards.named_parameters()], max_norm, norms.norm())


def clip_by_own_norm(shards, max_norm):
    """Wrong: every rank has another norm."""
    squares = torch.stack([gradient.square().sum() for gradient in shards.gradients()]).sum()
    clip_grads_with_norm_([p for _, p in shards.named_parameters()], max_norm, squares.sqrt())


def clip_by_sum_of_norms(shards, max_norm):
    """Wrong: a sum of norms is larger than the norm."""
    squares = torch.stack([gradient.square().sum() for gradient in shards.gradients()]).sum()
    norm = squares.sqrt()
    dist.all_reduce(norm)
    clip_grads_with_norm_([p for _, p in shards.named_parameters()], max_norm, norm)


def clip_local_parts(model, max_norm):
    """Wrong: every rank has another norm."""
    parts = [p.grad.to_local() for p in model.parameters()]
    norm = torch.stack([part.norm() for part in parts]).norm()
    clip_grads_with_norm_(list(model.parameters()), max_norm, norm)
