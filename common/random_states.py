"""The states of a process's random generators: of torch, numpy, random and its GPU."""

import random

import numpy
import torch


def random_states(device):
    """The states of all generators, as plain values and tensors."""
    name, keys, *rest = numpy.random.get_state()
    states = {
        "torch": torch.get_rng_state(),
        "numpy": (name, numpy.asarray(keys).tolist(), *rest),
        "random": random.getstate(),
    }
    if device.type == "cuda":
        states["cuda"] = torch.cuda.get_rng_state(device)
    return states


def restore(states, device):
    """Set all generators to the states that random_states() has returned."""
    torch.set_rng_state(states["torch"])
    name, keys, *rest = states["numpy"]
    numpy.random.set_state((name, numpy.array(keys, dtype=numpy.uint32), *rest))
    random.setstate(states["random"])
    if device.type == "cuda" and "cuda" in states:
        torch.cuda.set_rng_state(states["cuda"], device)
