"""A classifier divided into stages: some of its layers for each worker, one after another."""

from copy import deepcopy
from typing import Any

from common.errors import UserError
from common.layers import bounds_of
from common.models.unpad import NAME as UNPADDED

import torch
import torch.distributed as dist
from torch.nn.utils import clip_grads_with_norm_, get_total_norm


class Stage(torch.nn.Module):
    """This rank's stage: the first has the embeddings, too, and the last the classifier.

    `module` is the model, in which nothing is left of the parts of other stages; the others keep
    their names. `before` and `after` are the ranks of the neighbors, and there are `stages_after`
    this stage. With `args.chunks` above 1 a worker has several stages, `chunks`: this one, and
    those that come when a batch has gone through all workers again.
    """

    def __init__(self, model, args, world, chunk=0):
        super().__init__()
        count = getattr(args, "chunks", 1)
        copies = [] if chunk else [deepcopy(model) for _ in range(1, count)]
        further = [Stage(copy, args, world, at) for at, copy in enumerate(copies, 1)]
        self.further = torch.nn.ModuleList(further)
        layers = layers_of(model)
        self.world = world
        self.stages = world.parts * count
        self.number = chunk * world.parts + world.rank % world.parts
        self.bounds = bounds_of(args.layers, self.stages, len(layers))
        self.is_first = self.number == 0
        self.stages_after = self.stages - 1 - self.number
        self.is_last = self.stages_after == 0
        first_rank = world.rank - world.rank % world.parts
        self.before = first_rank + (self.number - 1) % world.parts
        self.after = first_rank + (self.number + 1) % world.parts
        self.received = Received()
        self.sent = {}  # rank -> (the last tensor sent to it, which is kept until it is there)
        self.module = model
        first, end = self.bounds[self.number]
        for number in {*range(len(layers))} - {*range(first, end)}:
            layers[number] = Elsewhere()
        if not self.is_first:
            leave_out_input(model.base_model, self.received)
        if not self.is_last:
            leave_out_output(model)
        for name, p in model.named_parameters():
            p.whole_name = name

    def forward(self, batch: dict, inputs: torch.Tensor | None = None) -> Any:
        """Run this stage's layers on a batch: the last stage returns the model's output.

        The others return the activations for the next stage; `inputs` are those of the stage
        before, in the shape `shape_of(batch)`, and None on the first.
        """
        self.received.activations = inputs
        if self.is_last:
            return self.module(**batch)
        output = self.module(**{name: batch[name] for name in batch if name != "labels"})
        return output.logits  # the activations: what would make logits of them is elsewhere

    @property
    def chunks(self) -> list:
        """All stages of this worker, in the order in which a batch goes through them."""
        return [self, *self.further]

    def shape_of(self, batch: dict) -> tuple[int, ...]:
        """The shape of a batch's activations: without padding, all tokens are in one row."""
        ids, mask, config = batch["input_ids"], batch["attention_mask"], self.module.config
        unpadded = config._attn_implementation == UNPADDED
        return (*((1, int(mask.sum())) if unpadded else ids.shape), config.hidden_size)

    def receive(self, shape, rank: int) -> torch.Tensor:
        """The tensor of that shape that a rank has sent, once it is there."""
        tensor = torch.empty(shape, device=self.world.device)
        dist.recv(tensor, rank)
        return tensor

    def send(self, tensor: torch.Tensor, rank: int) -> None:
        """Start to send a tensor to a rank, and return while it is on its way.

        It first waits until the one before has been received, so that they do not pile up.
        """
        if rank in self.sent:
            self.sent[rank][0].wait()
        self.sent[rank] = dist.isend(tensor, rank), tensor

    def predict(self, batch: dict) -> torch.Tensor | None:
        """A batch's logits, computed by all stages; on workers without the last stage, None."""
        for stage in self.chunks:
            hidden = None if stage.is_first else stage.receive(stage.shape_of(batch), stage.before)
            result = stage(batch, hidden)
            if stage.is_last:
                return result.logits
            stage.send(result, stage.after)
        return None

    def whole_weights(self) -> dict | None:
        """All stages' weights on rank 0, None on others; every rank calls it at once."""
        if self.world.rank >= self.world.parts:  # another replica, with the same weights
            return None
        parts: list = [None] * self.world.parts
        mine = {k: v for stage in self.chunks for k, v in stage.module.state_dict().items()}
        dist.gather_object(mine, parts if self.is_first else None, group=self.world.parts_group)
        if not self.is_first:
            return None
        return {name: weight for part in parts for name, weight in part.items()}

    def set_whole_weights(self, weights: dict) -> None:
        """Load this worker's part of the whole model's weights."""
        for stage in self.chunks:
            missing = stage.module.load_state_dict(weights, strict=False).missing_keys
            if missing:
                raise ValueError(f"it has no {', '.join(missing)}")


# SOLUTION(naive): clip by the norm of all stages' gradients together
def clip_grad_norm(stage: Stage, max_norm: float) -> None:
    """Scale the gradients down, if the norm of all stages' together is above `max_norm`."""
    squares = get_total_norm([p.grad for p in stage.parameters() if p.grad is not None]) ** 2
    dist.all_reduce(squares, group=stage.world.parts_group)
    clip_grads_with_norm_(stage.parameters(), max_norm, squares.sqrt())


class Elsewhere(torch.nn.Module):
    """Stands for a part of the model that another stage has: it changes nothing."""

    def forward(self, hidden, *_, **__):
        """What came in."""
        return hidden


class Received(torch.nn.Module):
    """Stands for the embeddings: gives the activations that the stage before has sent."""

    def __init__(self):
        super().__init__()
        self.activations: torch.Tensor | None = None

    def forward(self, *_, **__):
        """The activations."""
        return self.activations


def layers_of(model) -> torch.nn.ModuleList:
    """The encoder's layers; raises UserError for a model that cannot be divided."""
    encoder: Any = getattr(getattr(model, "base_model", None), "encoder", None)
    if hasattr(encoder, "layer"):
        return encoder.layer
    kind = getattr(getattr(model, "config", None), "model_type", type(model).__name__)
    raise UserError(
        f"--model_type {kind}: this model cannot be divided into stages; choose one of BERT's "
        "architecture (bert, roberta, electra), or `tiny`"
    )


def leave_out_input(base, received: Received) -> None:
    """Put what is received in the place of the embeddings."""
    for name, _ in list(base.named_children()):
        if name not in ("encoder", "pooler"):
            setattr(base, name, received if name == "embeddings" else Elsewhere())


def leave_out_output(model) -> None:
    """Leave out all that follows on the encoder, so that the model returns its activations."""
    base = model.base_model
    if getattr(base, "pooler", None) is not None:
        base.pooler = Elsewhere()
    for name, child in list(model.named_children()):
        if child is not base:
            setattr(model, name, Elsewhere())
