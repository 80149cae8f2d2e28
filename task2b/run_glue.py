"""Task 2(b): average the gradients with all_reduce."""

from common.gradients import flat_gradients
from common.load import load
from common.models.evaluate import evaluate
from common.models.optimizer import make_optimizer
from common.record.record import Record
from common.run import run

import torch.distributed as dist
from torch.nn.utils import clip_grad_norm_


# SOLUTION(task2b): sum the gradients over all ranks with all_reduce, then divide
def average_gradients(model, world):
    """Make every rank's gradients their mean over the ranks: summed by all_reduce, then divided."""
    gradients = flat_gradients(model)  # one buffer; every parameter's .grad is a view of it
    dist.all_reduce(gradients, op=dist.ReduceOp.SUM)
    gradients /= world.size


def main(args, world):
    model, data = load(args, world)
    optimizer, scheduler = make_optimizer(model, args, data.total_steps)
    record = Record(args, world, model, data, optimizer)
    for epoch in record.epochs():
        for batches in record.steps(data, epoch):
            optimizer.zero_grad()
            for batch, weight in batches:  # one batch, unless gradients are accumulated
                loss = model(**batch).loss * weight
                # SOLUTION(task1): run the backward pass, which fills every parameter's .grad
                loss.backward()
            # SOLUTION(task2a): average the gradients over the ranks, before they are clipped
            average_gradients(model, world)
            clip_grad_norm_(model.parameters(), args.max_grad_norm)
            # SOLUTION(task1): update the weights
            optimizer.step()
            scheduler.step()
        # SOLUTION(task1): evaluate on the dev set and pass the scores to record.end_epoch
        record.end_epoch(epoch, evaluate(model, data, world))
    record.finish(model)


if __name__ == "__main__":
    run(main, __file__)
