"""Task 8 in one process: the same model, trained on the batches that all ranks read.

The mean over all masked tokens and all pairs is one loss here, as nothing is divided.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

from common.models.optimizer import is_decayed
from grading.worker.sketch import sketch

import numpy as np
import torch
import transformers
from torch.nn.functional import cross_entropy

Steps = Sequence[Sequence[Sequence[dict]]]  # by step, rank and micro-batch


def replay(  # noqa: PLR0913 what a setting is made of
    model_folder: Path,
    steps: Steps,
    max_grad_norm: float,
    learning_rate: float | None = None,
    rates: Sequence[float] = (),
    decay: float = 0.0,
    decayed: Sequence[str] = ("weights",),
    detail: int | None = None,
) -> dict:
    """Train on `steps`, fp32 and without dropout.

    Plain gradient descent at `learning_rate`, or else AdamW at `rates`, with a weight decay of
    `decay` for what `decayed` names: "weights", and "others", which are biases and LayerNorm.

    Returns `names`, `sizes`, `start`, and for each step `losses` (micro-batches of all ranks, 2),
    the sketches `clipped` and `weights`, and `norm`. With a step's number in `detail` instead what
    `parts_of_gradient` returns for it.
    """
    torch.set_num_threads(1)
    transformers.logging.disable_progress_bar()
    model = transformers.BertForPreTraining.from_pretrained(model_folder, dtype=torch.float32)
    model.train()
    named = list(model.named_parameters())
    parameters = [p for _, p in named]
    optimizer = torch.optim.AdamW(
        [
            {
                "params": [p for name, p in named if is_decayed(name) is of_weights],
                "weight_decay": decay if kind in decayed else 0.0,
            }
            for kind, of_weights in (("weights", True), ("others", False))
        ],
        lr=0.0,
        fused=True,
    )
    start, records = sketches(parameters), []
    for index, ranks in enumerate(steps):
        batches = [batch for micro_batches in ranks for batch in micro_batches]
        if index == detail:
            return parts_of_gradient(model, batches)
        record: dict = {"losses": set_gradients(model, batches)}
        record["norm"] = float(torch.nn.utils.clip_grad_norm_(parameters, max_grad_norm))
        record["clipped"] = sketches([p.grad for p in parameters])
        if learning_rate is None:
            for group in optimizer.param_groups:
                group["lr"] = rates[index]
            torch.optim.AdamW.step(optimizer)
        else:
            torch.optim.SGD(parameters, lr=learning_rate).step()
        record["weights"] = sketches(parameters)
        records.append(record)
    return {
        "names": [name for name, _ in named],
        "sizes": [p.numel() for p in parameters],
        "start": start,
        **{key: np.array([record[key] for record in records]) for key in records[0]},
    }


def set_gradients(model, batches: list[dict]) -> list[list[float]]:
    """Make every parameter's .grad that of the loss; returns both mean losses of each batch."""
    model.zero_grad()
    sizes = [(masked_in(batch), len(batch["input_ids"])) for batch in batches]
    tokens, rows = np.sum(sizes, axis=0)
    found = []
    for batch, size in zip(batches, sizes, strict=True):
        words, pairs = sums_of(model, batch)
        (words / max(tokens, 1) + pairs / rows).backward()
        found.append([words.item() / max(size[0], 1), pairs.item() / size[1]])
    return found


def parts_of_gradient(model, batches: list[dict]) -> dict:
    """The gradients of each batch's two mean losses: `mlm` and `nsp` (batches, tensors, WIDTH).

    And how many `masked` tokens and `rows` each batch has.
    """
    found: dict[str, list] = {"mlm": [], "nsp": []}
    counts = {
        "masked": np.array([masked_in(batch) for batch in batches], float),
        "rows": np.array([len(batch["input_ids"]) for batch in batches], float),
    }
    for at, batch in enumerate(batches):
        sizes = max(counts["masked"][at], 1), counts["rows"][at]
        for kind, gradient in zip(found, each_gradient(model, batch, sizes), strict=True):
            found[kind].append(gradient)
    return {**{kind: np.stack(each) for kind, each in found.items()}, **counts}


def each_gradient(model, batch: dict, sizes: tuple) -> Iterator[np.ndarray]:
    """The gradients of a batch's two mean losses, one after the other."""
    for number, size in enumerate(sizes):
        model.zero_grad()
        (sums_of(model, batch)[number] / size).backward()
        given = [torch.zeros_like(p) if p.grad is None else p.grad for p in model.parameters()]
        yield sketches(given)


def sums_of(model, batch: dict) -> tuple[torch.Tensor, torch.Tensor]:
    """The summed losses of a batch's masked tokens, and of its pairs."""
    given = {name: torch.from_numpy(np.array(values)) for name, values in batch.items()}
    labels, follows = given.pop("labels"), given.pop("next_sentence_label")
    output = model(**given)
    words = output.prediction_logits.flatten(0, 1)
    return (
        cross_entropy(words, labels.flatten(), reduction="sum"),
        cross_entropy(output.seq_relationship_logits, follows, reduction="sum"),
    )


def masked_in(batch: dict) -> int:
    """How many tokens of a batch are to be predicted."""
    return int((batch["labels"] >= 0).sum())


def sketches(tensors) -> np.ndarray:
    """The tensors' sketches, stacked."""
    return np.stack([sketch(tensor) for tensor in tensors])
