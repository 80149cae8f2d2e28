"""Task 6, FSDP: shard weights, gradients and optimizer state with PyTorch's fully_shard."""

from common.flags import Flag
from common.load import load
from common.models.evaluate import evaluate
from common.models.optimizer import make_optimizer
from common.record.record import Record
from common.run import run

import torch
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.utils import clip_grad_norm_

FLAGS = [
    Flag("reshard_after_forward", ("yes", "no"), "yes", "free a layer's weights after its forward"),
    Flag("mixed_precision", ("no", "bf16"), "no", "compute in bfloat16, and reduce in float32"),
]


# SOLUTION(fsdp): call fully_shard on each layer of the encoder, and then on the model
def shard(model, args):
    """Shard a model in place: each layer is gathered when it is computed, and freed after it."""
    computed_in = torch.bfloat16 if args.mixed_precision == "bf16" else None
    how = {
        "reshard_after_forward": args.reshard_after_forward == "yes",
        "mp_policy": MixedPrecisionPolicy(param_dtype=computed_in, reduce_dtype=torch.float32),
    }
    for layer in model.base_model.encoder.layer:
        fully_shard(layer, **how)
    fully_shard(model, **how)


def main(args, world):
    model, data = load(args, world)
    shard(model, args)
    optimizer, scheduler = make_optimizer(model, args, data.total_steps)
    record = Record(args, world, model, data, optimizer)
    for epoch in record.epochs():
        for batches in record.steps(data, epoch):
            optimizer.zero_grad()
            for batch, weight in batches:  # one batch, unless gradients are accumulated
                loss = model(**batch).loss * weight
                # SOLUTION(task1): run the backward pass, which fills every parameter's .grad
                loss.backward()
            clip_grad_norm_(model.parameters(), args.max_grad_norm)
            # SOLUTION(task1): update the weights
            optimizer.step()
            scheduler.step()
        # SOLUTION(task1): evaluate on the dev set and pass the scores to record.end_epoch
        record.end_epoch(epoch, evaluate(model, data, world))
    record.finish(model)


if __name__ == "__main__":
    run(main, __file__, FLAGS)
