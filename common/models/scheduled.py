"""A stage as PyTorch's pipeline schedules call one: with micro-batches that are all alike."""

from common.errors import UserError
from common.models.stage import Stage

import torch
from torch.distributed.pipelining import PipelineStage
from torch.nn.functional import pad

IGNORED = -100  # a label that the cross entropy leaves out of its mean


class Called(torch.nn.Module):
    """A stage as PipelineStage calls it: the last returns the loss of a micro-batch."""

    def __init__(self, stage: Stage):
        super().__init__()
        self.stage = stage

    def forward(self, inputs: torch.Tensor, **batch: torch.Tensor) -> torch.Tensor:
        """Activations for the next stage, or, on the last, a micro-batch's mean loss in a row."""
        if self.stage.is_first:
            outputs = self.stage({"input_ids": inputs, **batch})
        else:
            outputs = self.stage(batch, inputs)
        return outputs.loss[None] if self.stage.is_last else outputs


def pipeline_stage(stage: Stage, rows: int, length: int) -> PipelineStage:
    """PyTorch's stage for micro-batches of that shape, which it need not find out by a trial."""
    device = stage.world.device
    ids = torch.zeros(rows, length, dtype=torch.long, device=device)
    shape = (rows, length, stage.module.config.hidden_size)
    hidden = torch.zeros(shape, device=device, requires_grad=True)
    return PipelineStage(
        Called(stage),
        stage.number,
        stage.stages,
        device,
        input_args=ids if stage.is_first else hidden,
        output_args=torch.zeros(1, device=device, requires_grad=True) if stage.is_last else hidden,
        group=stage.world.parts_group,
    )


def alike(batches: list, length: int) -> dict[str, torch.Tensor]:
    """Micro-batches in one batch, from which PyTorch cuts them again: padded to the same shape.

    Rows that fill a micro-batch have a label that no loss counts. Raises UserError for a
    regression, whose loss counts all.
    """
    rows = max(len(batch["labels"]) for batch, _ in batches)
    short = any(len(batch["labels"]) < rows for batch, _ in batches)
    if short and batches[0][0]["labels"].is_floating_point():
        raise UserError(
            "a regression's micro-batches must have equally many rows here; choose sizes that "
            "divide the training set, or use task7/one_f_one_b.py"
        )
    parts = {name: [] for name in batches[0][0]}
    for batch, _ in batches:
        for name, tensor in batch.items():
            missing = rows - len(tensor)
            if name == "labels":
                parts[name].append(pad(tensor, (0, missing), value=IGNORED))
            else:
                wide = pad(tensor, (0, length - tensor.shape[1]))
                parts[name].append(torch.cat([wide, wide[:1].expand(missing, -1)]))
    return {name: torch.cat(tensors) for name, tensors in parts.items()}
