"""Task 6, ZeRO-2: each worker keeps the gradients, too, of its own slice of the weights alone."""

from common.flags import Flag
from common.load import load
from common.models.evaluate import evaluate
from common.models.optimizer import make_optimizer
from common.record.record import Record
from common.run import run
from common.shards import Shards, clip_grad_norm, gather_weights

import torch
import torch.distributed as dist

FLAGS = [Flag("reduce_scatter", ("own", "gloo"), "own", "`reduce_gradients`, or the backend's own")]


# SOLUTION(zero2): receive this rank's slice from every rank, and average it
def reduce_gradients(gradients, world):
    """The mean over the ranks of a bucket's gradients, for this rank's slice of the bucket."""
    parts = torch.empty_like(gradients)  # what every rank has computed for this rank's slice
    dist.all_to_all_single(parts, gradients)
    return parts.view(world.size, -1).sum(0) / world.size


def reduce_by_backend(gradients, world):
    """The same by the backend's collective; gloo's is an all_reduce inside."""
    mine = torch.empty_like(gradients.chunk(world.size)[world.rank])
    dist.reduce_scatter_single(mine, gradients, op=dist.ReduceOp.SUM)
    return mine / world.size


def main(args, world):
    model, data = load(args, world)
    own = args.reduce_scatter == "own"
    shards = Shards(model, world, reduce_gradients if own else reduce_by_backend)
    optimizer, scheduler = make_optimizer(shards, args, data.total_steps)
    record = Record(args, world, model, data, optimizer)
    for epoch in record.epochs():
        for batches in record.steps(data, epoch):
            optimizer.zero_grad()
            for batch, weight in batches:  # one batch, unless gradients are accumulated
                loss = model(**batch).loss * weight
                # SOLUTION(task1): run the backward pass, which fills every parameter's .grad
                loss.backward()
            clip_grad_norm(shards, args.max_grad_norm)
            # SOLUTION(task1): update the weights
            optimizer.step()
            gather_weights(shards)
            scheduler.step()
        # SOLUTION(task1): evaluate on the dev set and pass the scores to record.end_epoch
        record.end_epoch(epoch, evaluate(model, data, world))
    record.finish(model)


if __name__ == "__main__":
    run(main, __file__, FLAGS)
