"""Refuses checkpoint folders that are half there, before a run trains on what is left of them."""

import re
from pathlib import Path

from common.errors import UserError

import safetensors
import torch

PADDING = 127  # rows that some checkpoints add to round their vocabulary up


def check_complete(model, tokenizer, args) -> None:
    """Raise UserError for a checkpoint whose parts do not fit each other, with what is missing.

    transformers loads all of these: without tokenizer files every word becomes [UNK], and layers
    that the configuration names but the weights lack are drawn at random.
    """
    name = args.model_name_or_path
    size, words = model.get_input_embeddings().num_embeddings, len(tokenizer)
    if not size - PADDING <= words <= size:
        source = args.tokenizer_name or name
        raise UserError(
            f"--model_name_or_path {name}: the model has {size} tokens, but the tokenizer of "
            f"{source} has {words}; its vocabulary (tokenizer.json or vocab.txt) is missing or "
            "belongs to another model: copy the model's own there, or give --tokenizer_name"
        )
    for weight, values in model.named_parameters():
        if not torch.isfinite(values).all():
            raise UserError(
                f"--model_name_or_path {name}: its weight {weight} is not finite, so it was "
                "damaged or its training diverged; download or train it again"
            )
    wanted, found = getattr(model.config, "num_hidden_layers", None), layers_saved(Path(name))
    if wanted and found and wanted != found:
        raise UserError(
            f"--model_name_or_path {name}: its config.json names {wanted} layers, but "
            f"model.safetensors holds {found}; one of the two files belongs to another model"
        )


def layers_saved(folder: Path) -> int:
    """How many encoder layers a folder's model.safetensors holds; 0 where that is not known."""
    file = folder / "model.safetensors"
    if not file.is_file():
        return 0
    with safetensors.safe_open(file, "pt") as weights:
        numbers = re.findall(r"\bencoder\.layer\.(\d+)\.", "\n".join(weights.keys()))
    return max(map(int, numbers), default=-1) + 1
