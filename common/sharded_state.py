"""Weights and optimizer state that are cut over the ranks: gathered whole, or written in parts.

The parts are written by torch.distributed.checkpoint, which reads them on any number of workers.
"""

import math
from pathlib import Path
from typing import Any

from common.engine import gathered_weights, shards_weights
from common.models.stage import Stage
from common.models.tensor_parallel import gathered, is_part, load_parts

import torch
import torch.distributed as dist
from torch.distributed import checkpoint
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    set_model_state_dict,
)
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor, Shard


def is_cut(tensor: torch.Tensor) -> bool:
    """Whether this rank holds only a part of a parameter: FSDP's, or a slice of a bucket."""
    return isinstance(tensor, DTensor) or is_slice(tensor)


def is_slice(p: torch.Tensor) -> bool:
    """Whether a parameter of the optimizer is this rank's slice of a bucket (common.shards)."""
    return hasattr(p, "whole_size")


def size_of(p: Any) -> int:
    """How many elements a parameter has in all, even where DeepSpeed has left none of it here."""
    return getattr(p, "ds_numel", p.numel())


def local(tensor: torch.Tensor) -> torch.Tensor:
    """This rank's part of a tensor, which is all of it unless it is a DTensor."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def whole_weights(model: torch.nn.Module) -> dict | None:
    """The whole weights of a model that is divided or sharded, on rank 0; None for others.

    The weights of all others are whole already. Every rank calls it at once.
    """
    if isinstance(model, Stage):
        return model.whole_weights()
    if any(map(is_part, model.parameters())):
        return gathered(model)
    if shards_weights(model):
        return gathered_weights(model)
    if not isinstance(model, FSDPModule):
        return None
    return get_model_state_dict(
        model, options=StateDictOptions(full_state_dict=True, cpu_offload=True)
    )


def set_whole_weights(model: torch.nn.Module, weights: dict) -> None:
    """Load whole weights, which every rank has, into a model; every rank calls it at once."""
    if isinstance(model, Stage):
        model.set_whole_weights(weights)
    elif any(map(is_part, model.parameters())):
        load_parts(model, weights)
    else:
        set_model_state_dict(model, weights, options=StateDictOptions(full_state_dict=True))


def is_sharded(optimizer: torch.optim.Optimizer) -> bool:
    """Whether each rank has only a part of the optimizer's state: of slices, or of a stage."""
    return any(is_cut(p) or hasattr(p, "whole_name") for p in parameters_of(optimizer))


def parameters_of(optimizer: torch.optim.Optimizer) -> list[torch.nn.Parameter]:
    """All parameters of an optimizer, in order."""
    return [p for group in optimizer.param_groups for p in group["params"]]


def save_state(optimizer: torch.optim.Optimizer, folder: Path) -> None:
    """Write a sharded optimizer's state; every rank calls it at once, with the same folder."""
    checkpoint.save(state_tensors(optimizer), checkpoint_id=folder)


def load_state(optimizer: torch.optim.Optimizer, folder: Path) -> None:
    """Read what `save_state` wrote of an AdamW, perhaps on another number of workers."""
    for p in parameters_of(optimizer):
        moments = {name: torch.zeros_like(p) for name in ("exp_avg", "exp_avg_sq")}
        optimizer.state[p] = {"step": torch.zeros((), device=p.device), **moments}
    checkpoint.load(state_tensors(optimizer), checkpoint_id=folder)


def state_tensors(optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    """The tensors of an optimizer's state, with the place of each rank's part in the whole."""
    cut = parameters_of(optimizer)
    mesh = init_device_mesh(cut[0].device.type, (dist.get_world_size(),))
    return {
        f"{getattr(p, 'whole_name', number)}.{name}": placed(tensor, p, mesh)
        for number, p in enumerate(cut)
        for name, tensor in optimizer.state[p].items()
    }


def placed(tensor: torch.Tensor, p: Any, mesh: DeviceMesh) -> torch.Tensor:
    """A tensor of a part's state as a part of the whole's, without the zeros that end a slice."""
    if tensor.dim() and is_part(p):
        return DTensor.from_local(tensor, mesh, [Shard(p.part_dim)], run_check=False)
    if tensor.dim() == 0 or not is_slice(p):
        return tensor
    part = math.ceil(p.whole_size / mesh.size())
    real = min(part, max(0, p.whole_size - mesh.get_rank() * part))
    size = torch.Size([p.whole_size])
    return DTensor.from_local(
        tensor[:real], mesh, [Shard(0)], run_check=False, shape=size, stride=(1,)
    )
