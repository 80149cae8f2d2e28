"""A classifier whose layers' matrices are divided over the workers, and its weights as a whole.

Source: Shoeybi et al., "Megatron-LM: Training Multi-Billion Parameter Language Models Using Model
Parallelism", 2019.
"""

from collections.abc import Iterator
from typing import Any

from common.errors import UserError
from common.models.stage import layers_of
from common.norms import norms

import torch
import torch.distributed as dist
from torch.nn.utils import clip_grads_with_norm_


def prepare(model, args, world) -> None:
    """Have all workers draw the same dropout, and refuse a model that they cannot divide."""
    torch.manual_seed(args.seed)
    config, size = model.config, world.size
    for what, count in (
        ("attention heads", config.num_attention_heads),
        ("hidden units of the feed-forward part", config.intermediate_size),
    ):
        if count % size:
            raise UserError(
                f"{size} workers: each layer of the model has {count} {what}, which do not divide "
                f"by {size}; start a number of workers that divides {count}"
            )
    for name, p in model.named_parameters():
        p.whole_name = name


def blocks_of(model) -> Iterator[tuple[Any, list, Any]]:
    """(module, linear layers that read its inputs, the one that follows), two for each layer."""
    layer: Any
    for layer in layers_of(model):
        attention = layer.attention
        own = attention.self
        yield own, [own.query, own.key, own.value], attention.output.dense
        yield layer.intermediate, [layer.intermediate.dense], layer.output.dense


def keep_part(linear: torch.nn.Linear, world, dim: int) -> None:
    """Leave a linear layer this rank's part of its weight's rows (dim 0) or columns (dim 1).

    With its rows go its biases, one for each.
    """
    for name, p in list(linear.named_parameters()):
        if dim < p.dim() and (name == "weight" or dim == 0):
            part: Any = torch.nn.Parameter(p.detach().chunk(world.size, dim)[world.rank].clone())
            part.whole_name = p.whole_name  # pyright: ignore[reportAttributeAccessIssue]
            part.part_dim = dim
            setattr(linear, name, part)


def is_part(p: torch.Tensor) -> bool:
    """Whether a parameter is a part of a matrix, of which other workers have the rest."""
    return hasattr(p, "part_dim")


# SOLUTION(tensor): clip by the norm of all workers' parts, and of what all have counted once
def clip_grad_norm(model, max_norm: float) -> None:
    """Scale the gradients down, if the norm of the whole model's is above `max_norm`."""
    parts = [p.grad for p in model.parameters() if is_part(p)]
    alike = [p.grad for p in model.parameters() if not is_part(p)]
    squares = torch.stack(norms(parts)).square().sum()
    dist.all_reduce(squares)
    squares += torch.stack(norms(alike)).square().sum()
    clip_grads_with_norm_(model.parameters(), max_norm, squares.sqrt())


def gathered(model) -> dict:
    """The whole weights, put together from all workers' parts; every rank calls it at once."""
    whole = model.state_dict()
    for name, p in model.named_parameters():
        if is_part(p):
            parts = [torch.empty_like(p) for _ in range(dist.get_world_size())]
            dist.all_gather(parts, p.detach().contiguous())
            whole[name] = torch.cat(parts, p.part_dim)
    return whole


def load_parts(model, weights: dict) -> None:
    """Load this worker's parts of whole weights."""
    size, rank = dist.get_world_size(), dist.get_rank()
    mine = dict(weights)
    for name, p in model.named_parameters():
        if is_part(p):
            mine[name] = weights[name].chunk(size, p.part_dim)[rank]
    model.load_state_dict(mine)
