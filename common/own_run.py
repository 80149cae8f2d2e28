"""What the loop needs of an OwnTask: a model, its batches, and its metric."""

import hashlib
import json
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from common.data.loader import Data, steps_of_run
from common.data.uneven import UnevenBatches

import torch
import torch.distributed as dist
from safetensors.torch import save_model
from transformers.utils import ModelOutput


@dataclass
class Output(ModelOutput):
    """What a forward pass returns."""

    loss: torch.Tensor | None = None


class OwnModel(torch.nn.Module):
    """An OwnTask's model, called with a batch as transformers' models are."""

    def __init__(self, own):
        super().__init__()
        self.own = own
        self.net = own.build_model()
        facts = {"model_type": "own", "layers": str(self.net)}
        self.config = SimpleNamespace(to_dict=lambda: facts)

    def forward(self, **batch):
        """The mean loss of a batch."""
        return Output(loss=self.own.loss(self.net, batch))

    def save_pretrained(self, folder):
        """Write the weights, and what the model is made of."""
        folder.mkdir()
        save_model(self, str(folder / "model.safetensors"))
        (folder / "config.json").write_text(json.dumps(self.config.to_dict()) + "\n")


class Examples(list):
    """A split's examples; `digest` is the SHA-256 of what they hold, in hex."""

    def __init__(self, own, rows):
        super().__init__(rows)
        self.own = own
        sha = hashlib.sha256()
        for name, tensor in own.collate(self).items():
            sha.update(name.encode() + tensor.contiguous().numpy().tobytes())
        self.digest = sha.hexdigest()

    def head(self, count):
        """The first examples."""
        return Examples(self.own, self[:count])


class OwnBatches(UnevenBatches):
    """This rank's parts of the batches of an OwnTask."""

    def __init__(self, own, splits, args, world):
        super().__init__(splits, None, args, world)
        self.own = own

    def collate(self, rows, _, device):
        """The batch of some examples, on the device."""
        return to(device, self.own.collate(rows))


def to(device, batch):
    """A batch on a device."""
    return {name: tensor.to(device) for name, tensor in batch.items()}


def load_own(own, args, world):
    """The model, with new weights drawn from --seed alike on every rank, and the Data."""
    torch.manual_seed(args.seed)
    model = OwnModel(own).to(world.device).train()
    wanted = ["train"] * args.do_train + ["dev"] * args.do_eval
    splits: dict[str, Any] = {split: Examples(own, own.load_split(args, split)) for split in wanted}
    batches = OwnBatches(own, splits, args, world)
    total = steps_of_run(args, batches)
    nothing = SimpleNamespace(save_pretrained=lambda _: None)  # there is no tokenizer
    return model, Data(own, nothing, splits, batches, total, args.per_gpu_eval_batch_size)


@torch.no_grad()
def evaluate_own(model, data, world):
    """The mean of the metric over the dev set: name -> value, the same on every rank."""
    inner, sums = getattr(model, "module", model).eval(), {}
    rows = data.splits.get("dev", [])
    mine = rows[world.rank :: world.size]
    for at in range(0, len(mine), data.eval_batch_size):
        batch = to(world.device, inner.own.collate(mine[at : at + data.eval_batch_size]))
        for name, values in inner.own.metric(inner.net, batch).items():
            sums[name] = sums.get(name, 0.0) + values.double().sum().item()
    parts = [sums] * world.size
    if world.size > 1:
        dist.all_gather_object(parts, sums)
    model.train()
    names = dict.fromkeys(name for part in parts for name in part)
    return {name: sum(part.get(name, 0.0) for part in parts) / len(rows) for name in names}
