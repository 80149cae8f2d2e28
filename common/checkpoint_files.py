"""The files of a checkpoint: which ones are complete, and how tensors are written and read."""

import json
import os

from common.files import whole

import torch

COMPLETE = "complete"
TRAINING = "training.pt"
SHARDS = "shards"  # of the optimizer, where each rank has a part of it


def complete_ones(folder):
    """The folders of the complete checkpoints in a folder."""
    return [file.parent for file in folder.glob(f"checkpoint-*/{COMPLETE}") if step_of(file.parent)]


def step_of(checkpoint):
    """The step that a checkpoint was saved after, from its folder's name; 0 for another name."""
    step = checkpoint.name.removeprefix("checkpoint-")
    return int(step) if step.isdigit() else 0


def finished(folder):
    """Whether the run in a folder has succeeded."""
    try:
        return json.loads((folder / "run.json").read_text())["end"] is not None
    except (OSError, ValueError, KeyError, TypeError):
        return False


def write_tensors(values, path):
    """Write what `read_tensors` reads, whole or not at all."""
    with whole(path) as part, part.open("wb") as file:
        torch.save(values, file)
        file.flush()
        os.fsync(file.fileno())


def read_tensors(path):
    """Read tensors and plain values; nothing in the file is executed."""
    return torch.load(path, map_location="cpu", weights_only=True)
