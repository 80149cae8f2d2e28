"""Task 2(a): average the gradients with gather and scatter."""

from common.gradients import SLICE, flat_gradients
from common.load import load
from common.models.evaluate import evaluate
from common.models.optimizer import make_optimizer
from common.record.record import Record
from common.run import run

import torch
import torch.distributed as dist
from torch.nn.utils import clip_grad_norm_


# SOLUTION(task2a): gather each slice on rank 0, average it there, scatter it to all ranks
def average_gradients(model, world):
    """Make every rank's gradients their mean over the ranks: gathered on rank 0, scattered back."""
    for part in flat_gradients(model).split(SLICE):
        copies = [torch.empty_like(part) for _ in range(world.size)] if world.rank == 0 else None
        dist.gather(part, copies, dst=0)
        if world.rank == 0:
            for other in copies[1:]:
                copies[0] += other
            copies = [copies[0] / world.size] * world.size
        dist.scatter(part, copies, src=0)


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
