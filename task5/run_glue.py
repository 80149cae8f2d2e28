"""Task 5: average the gradients of uneven workers, so that every example counts the same."""

from common.gradients import flat_gradients
from common.load import load
from common.models.evaluate import evaluate
from common.models.optimizer import make_optimizer
from common.record.record import Record
from common.run import run

import torch.distributed as dist
from torch.nn.utils import clip_grad_norm_


# SOLUTION(task5): multiply by this rank's examples, sum both with one all_reduce, and divide
def average_gradients(model, examples):
    """Make every rank's gradients their mean over the examples of all ranks, of which it has some.

    The number of examples travels at the end of the buffer: its sum is what to divide by.
    """
    gradients = flat_gradients(model, spare=1)
    gradients *= examples
    gradients[-1] = examples
    dist.all_reduce(gradients, op=dist.ReduceOp.SUM)
    gradients /= gradients[-1].item()


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
            # SOLUTION(task5): average them over the examples of all ranks, before they are clipped
            average_gradients(model, batches.examples)
            clip_grad_norm_(model.parameters(), args.max_grad_norm)
            # SOLUTION(task1): update the weights
            optimizer.step()
            scheduler.step()
        # SOLUTION(task1): evaluate on the dev set and pass the scores to record.end_epoch
        record.end_epoch(epoch, evaluate(model, data, world))
    record.finish(model)


if __name__ == "__main__":
    run(main, __file__)
