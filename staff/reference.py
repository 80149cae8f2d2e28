"""The reference: one process trains the same model on the rows that all ranks read."""

import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from grading.worker.sketch import sketch

import numpy as np
import torch
import transformers

BETA2, EPSILON = 0.999, 1e-8  # of AdamW, as the assignment has it


def replay(  # noqa: PLR0913 what a setting is made of
    model_folder: Path,
    steps: list[list[dict]],
    max_grad_norm: float,
    learning_rate: float | None = None,
    rates: Sequence[float] = (),
    early_eps: bool = False,
    decay: float = 0.0,
    detail: int | None = None,
) -> dict:
    """Train on `steps`: for each step and rank, that rank's rows as a dict of int64 arrays.

    Plain gradient descent at `learning_rate`, or else AdamW with a weight decay of `decay` for all
    tensors, at `rates` (one for each step). fp32, no dropout. A rank's loss is the mean over its
    rows; the step's gradient is the mean over all ranks' rows, clipped to `max_grad_norm`. With
    `early_eps` AdamW is that of 2019, which adds its epsilon before it corrects the second moment's
    bias.

    Returns a dict. `names`; `start`, sketches of the weights (tensors, WIDTH); and for each step
    `loss` (ranks), `clipped` (tensors, WIDTH), `norm` of the mean, and `weights` after the update.
    With a step's number in `detail` instead what local_gradients returns for it.
    """
    torch.set_num_threads(1)
    transformers.logging.disable_progress_bar()
    model = transformers.BertForSequenceClassification.from_pretrained(
        model_folder, dtype=torch.float32
    )
    model.train()
    parameters = list(model.parameters())
    optimizer = torch.optim.AdamW(
        parameters, lr=0.0, betas=(0.9, BETA2), weight_decay=decay, fused=True
    )
    start, records = sketches(parameters), []
    for index, ranks in enumerate(steps):
        if index == detail:
            return local_gradients(model, ranks, max_grad_norm)
        record: dict[str, Any] = {"loss": set_gradients(model, ranks)}
        record["norm"] = float(torch.nn.utils.clip_grad_norm_(parameters, max_grad_norm))
        record["clipped"] = sketches([p.grad for p in parameters])
        if learning_rate is None:
            correction = math.sqrt(1 - BETA2 ** (index + 1)) if early_eps else 1.0
            optimizer.param_groups[0].update(lr=rates[index], eps=EPSILON / correction)
            optimizer.step()
        else:
            with torch.no_grad():
                for p in parameters:
                    p.sub_(learning_rate * p.grad)  # pyright: ignore[reportOperatorIssue]
        record["weights"] = sketches(parameters)
        records.append(record)
    return {
        "names": [name for name, _ in model.named_parameters()],
        "sizes": [p.numel() for p in parameters],
        "start": start,
        **{key: np.array([record[key] for record in records]) for key in records[0]},
    }


def set_gradients(model, ranks: list[dict]) -> list[float]:
    """Make every parameter's .grad that of the mean loss over all ranks' rows.

    Returns the ranks' losses: each the mean over its rows. All ranks' rows go through the model
    together, padded alike: three times as fast as one rank's after the other's.
    """
    longest = max(rows["input_ids"].shape[1] for rows in ranks)
    batch = {
        name: torch.from_numpy(np.concatenate([padded(rows[name], longest) for rows in ranks]))
        for name in ranks[0]
    }
    labels = batch.pop("labels")
    model.zero_grad()
    each = torch.nn.functional.cross_entropy(model(**batch).logits, labels, reduction="none")
    each.mean().backward()
    counts = [len(rows["labels"]) for rows in ranks]
    return [float(of_rank.mean()) for of_rank in each.detach().split(counts)]


def padded(values: np.ndarray, longest: int) -> np.ndarray:
    """A batch's array of shape (rows, tokens), filled up with zeros; others as they are."""
    if values.ndim == 1:
        return values
    return np.pad(values, ((0, 0), (0, longest - values.shape[1])))


def local_gradients(model, ranks: list[dict], max_grad_norm: float) -> dict:
    """Each rank's own gradients, for a diagnosis.

    `local` (ranks, tensors, WIDTH), their `norms` (ranks), `mean` (tensors, WIDTH), and what it is
    if every tensor (`by_tensor`) or every element (`by_value`) is clipped by itself, and the mean
    of the ranks' own if these are clipped by tensor (`local_by_tensor`).
    """
    found = [local_gradient(model, rows) for rows in ranks]
    counts = torch.tensor([float(len(rows["labels"])) for rows in ranks])

    def mean_of(gradients: Iterable) -> list[torch.Tensor]:
        """The mean over all ranks' rows, a tensor for each parameter."""
        pairs = zip(*gradients, strict=True)
        shares = counts / counts.sum()
        return [torch.tensordot(shares, torch.stack(of_ranks), 1) for of_ranks in pairs]

    mean = mean_of(found)
    clipped = [[clipped_tensor(g, max_grad_norm) for g in gradient] for gradient in found]
    return {
        "local": np.stack([sketches(gradient) for gradient in found]),
        "norms": [float(total_norm(gradient)) for gradient in found],
        "mean": sketches(mean),
        "by_tensor": sketches([clipped_tensor(g, max_grad_norm) for g in mean]),
        "by_value": sketches([g.clamp(-max_grad_norm, max_grad_norm) for g in mean]),
        "local_by_tensor": sketches(mean_of(clipped)),
    }


def clipped_tensor(gradient: torch.Tensor, most: float) -> torch.Tensor:
    """A tensor scaled down to the norm `most`, where it is larger."""
    return gradient * min(1.0, most / (float(gradient.norm()) + 1e-6))


def local_gradient(model, rows: dict) -> list[torch.Tensor]:
    """The gradient of the mean loss over some rows, a tensor for each parameter."""
    batch = {name: torch.from_numpy(np.array(values)) for name, values in rows.items()}
    model.zero_grad()
    model(**batch).loss.backward()
    return [p.grad.clone() for p in model.parameters()]


def total_norm(gradient: list) -> torch.Tensor:
    """The norm of all tensors together."""
    return torch.stack([g.norm() for g in gradient]).norm()


def sketches(tensors) -> np.ndarray:
    """The tensors' sketches, stacked."""
    return np.stack([sketch(tensor) for tensor in tensors])
