"""The dev-set metrics of a model."""

from common.data.glue import score
from common.data.loader import collate
from common.models.stage import Stage
from common.own_run import evaluate_own
from common.own_task import OwnTask

import torch
import torch.distributed as dist


@torch.no_grad()
def evaluate(model, data, world):
    """The GLUE task's metrics on its dev sets: name -> value, the same on every rank.

    Each rank predicts every `world.size`-th row, and all equally many, as the weights of a sharded
    model are gathered in every forward pass: at the end some predict a row for the second time.
    All parts of a divided model go through the same rows, and the last one has the predictions.
    The metric is taken over all rows: the mean of the shards' F1 is not F1.
    """
    if isinstance(data.glue_task, OwnTask):
        return evaluate_own(model, data, world)
    readers = world.readers()
    if not isinstance(model, Stage):
        model = getattr(model, "module", model)
    model.eval()
    scores = {}
    for split, features in data.splits.items():
        if split not in data.glue_task.dev_splits:
            continue
        firsts = range(0, len(features), readers.size)
        rows = [(first + readers.rank) % len(features) for first in firsts]
        mine = predict(model, data, features, rows)
        parts = [mine] * world.size
        if world.size > 1:
            dist.all_gather_object(parts, mine)
        rounds = zip(*parts[world.parts - 1 :: world.parts], strict=True)
        predictions = [one for every_rank in rounds for one in every_rank][: len(features)]
        labels = [features[row]["labels"].item() for row in range(len(features))]
        prefix = split.removeprefix("dev").lstrip("_")
        for name, value in score(data.glue_task, predictions, labels).items():
            scores[f"{prefix}_{name}" if prefix else name] = value
    model.train()
    return scores


def predict(model, data, features, rows):
    """Class ids, or scores for a regression, of some rows, as a list; [] where others have them."""
    predictions, device = [], next(model.parameters()).device
    for at in range(0, len(rows), data.eval_batch_size):
        batch = [features[row] for row in rows[at : at + data.eval_batch_size]]
        inputs = collate(batch, data.tokenizer, device)
        logits = model.predict(inputs) if isinstance(model, Stage) else model(**inputs).logits
        if logits is None:
            continue
        logits = logits.float()
        predictions += (logits.argmax(1) if data.glue_task.labels else logits.squeeze(1)).tolist()
    return predictions
