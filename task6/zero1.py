"""Task 6, ZeRO-1: each worker keeps the optimizer's state of its own slice of the weights."""

from common.load import load
from common.models.evaluate import evaluate
from common.models.optimizer import make_optimizer
from common.record.record import Record
from common.run import run
from common.shards import Shards, clip_grad_norm, gather_weights

import torch.distributed as dist


# SOLUTION(zero1): average a bucket of gradients, and return this rank's slice of it
def reduce_gradients(gradients, world):
    """The mean over the ranks of a bucket's gradients, for this rank's slice of the bucket."""
    dist.all_reduce(gradients, op=dist.ReduceOp.SUM)
    gradients /= world.size
    return gradients.chunk(world.size)[world.rank]  # a view: all of them stay in memory


def main(args, world):
    model, data = load(args, world)
    shards = Shards(model, world, reduce_gradients)
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
    run(main, __file__)
