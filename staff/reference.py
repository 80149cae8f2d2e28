"""The reference: one process trains the same model on the rows that all ranks read."""

import math
from collections.abc import Sequence
from pathlib import Path

from grading.worker.sketch import sketch

import numpy as np
import torch
import transformers

BETA2, EPSILON = 0.999, 1e-8  # of AdamW, as the assignment has it


def replay(
    model_folder: Path,
    steps: list[list[dict]],
    max_grad_norm: float,
    learning_rate: float | None = None,
    rates: Sequence[float] = (),
    early_eps: bool = False,
) -> dict:
    """Train on `steps`: for each step and rank, that rank's rows as a dict of int64 arrays.

    Plain gradient descent at `learning_rate`, or else AdamW, without weight decay, at `rates` (one
    for each step). fp32, no dropout. A rank's loss is the mean over its rows; the step's gradient
    is the mean of the ranks' gradients, which for equally many rows is that of all rows together,
    clipped to `max_grad_norm`. With `early_eps` AdamW is that of 2019, which adds its epsilon
    before it corrects the second moment's bias.

    Returns a dict. `names`; `start`, sketches of the weights (tensors, WIDTH); and for each step
    `loss` (ranks), `local` (ranks, tensors, WIDTH) and `norms` (ranks) of each rank's own gradient,
    `mean` and `clipped` (tensors, WIDTH), `norm` of the mean, and `weights` after the update.
    """
    torch.set_num_threads(1)
    transformers.logging.disable_progress_bar()
    model = transformers.BertForSequenceClassification.from_pretrained(
        model_folder, dtype=torch.float32
    )
    model.train()
    parameters = list(model.parameters())
    optimizer = torch.optim.AdamW(parameters, lr=0.0, betas=(0.9, BETA2), weight_decay=0.0)
    start, records = sketches(parameters), []
    for index, ranks in enumerate(steps):
        record = set_gradients(model, ranks)
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


def set_gradients(model, ranks: list[dict]) -> dict:
    """Make every parameter's .grad the mean of the ranks' gradients; returns their record."""
    losses, gradients = zip(*(local_gradient(model, rows) for rows in ranks), strict=True)
    parameters = list(model.parameters())
    for p, *of_ranks in zip(parameters, *gradients, strict=True):
        p.grad = torch.stack(of_ranks).mean(dim=0)
    return {
        "loss": losses,
        "local": np.stack([sketches(gradient) for gradient in gradients]),
        "norms": [float(total_norm(gradient)) for gradient in gradients],
        "mean": sketches([p.grad for p in parameters]),
    }


def local_gradient(model, rows: dict) -> tuple[float, list]:
    """The mean loss over some rows, and its gradient, a tensor for each parameter."""
    batch = {name: torch.from_numpy(np.array(values)) for name, values in rows.items()}
    model.zero_grad()
    loss = model(**batch).loss
    loss.backward()
    return loss.item(), [p.grad.clone() for p in model.parameters()]


def total_norm(gradient: list) -> torch.Tensor:
    """The norm of all tensors together."""
    return torch.stack([g.norm() for g in gradient]).norm()


def sketches(tensors) -> np.ndarray:
    """The tensors' sketches, stacked."""
    return np.stack([sketch(tensor) for tensor in tensors])
