"""Ways of scaling LAMB's updates, each to stand in for the solution's `trust_ratio`."""

from common.norms import norms

import torch


def without_bounds(weight, update, *_):
    of_weight, of_update = norms([weight, update])
    return torch.where((of_weight > 0) & (of_update > 0), of_weight / of_update, 1.0)


def without_zeros(weight, update, lowest, highest):
    of_weight, of_update = norms([weight, update])
    return (of_weight / of_update).clamp(lowest, highest)


def upside_down(weight, update, lowest, highest):
    of_weight, of_update = norms([weight, update])
    ratio = (of_update / of_weight).clamp(lowest, highest)
    return torch.where((of_weight > 0) & (of_update > 0), ratio, 1.0)


def branching(weight, update, lowest, highest):
    """Right: Python's numbers, and a branch."""
    of_weight, of_update = float(weight.norm()), float(update.norm())
    if not of_weight or not of_update:
        return torch.tensor(1.0)
    return torch.tensor(min(max(of_weight / of_update, lowest), highest))
