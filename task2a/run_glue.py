"""Task 2(a): average the gradients with gather and scatter."""

from common.data.glue import find_glue_task
from common.data.loader import TrainingBatches, load_splits
from common.gradients import gradient_buckets
from common.models.bert import load_model, weights_digest
from common.models.evaluate import evaluate
from common.models.optimizer import make_optimizer
from common.record.record import Record
from common.run import run
from common.workers.world import agree

import torch
import torch.distributed as dist
from torch.nn.utils import clip_grad_norm_


# SOLUTION(task2a): each bucket: gather on rank 0, take the mean there, scatter it to all ranks
def average_gradients(model, world):
    """Make every rank's gradients their mean over the ranks: gathered on rank 0, scattered back.

    With gradients of S bytes on N ranks, rank 0 receives (N-1) x S bytes and sends as many; every
    other rank sends S and receives S. Rank 0 holds copies of one bucket (7 MiB) at a time, N of
    ours and N of gloo's, not of the whole model.
    """
    for bucket in gradient_buckets(model):
        copies = [torch.empty_like(bucket) for _ in range(world.size)] if world.rank == 0 else None
        dist.gather(bucket, copies, dst=0)
        if world.rank == 0:
            mean, *others = copies
            for other in others:
                mean += other
            mean /= world.size
            copies = [mean] * world.size
        dist.scatter(bucket, copies, src=0)


def main(args, world):
    task = find_glue_task(args.task_name)
    model, tokenizer = load_model(args, task, world)
    splits = load_splits(args, task, tokenizer)
    agree(world, data=[split.digest for split in splits.values()], weights=weights_digest(model))
    batches = TrainingBatches(splits, tokenizer, args, world)
    record = Record(args, world, model, splits, batches)
    optimizer, scheduler = make_optimizer(model, args, record.updates)

    for epoch in record.epochs():
        for step_batches in record.steps(batches, epoch):
            optimizer.zero_grad()
            for batch, share in step_batches:  # one batch, unless gradients are accumulated
                loss = model(**batch).loss * share
                record.lap("forward", loss)
                # SOLUTION(task1): the gradient of the loss, in every parameter's .grad
                loss.backward()
                record.lap("backward")
            # SOLUTION(task2a): make the gradients the mean over the ranks, before they are clipped
            average_gradients(model, world)
            record.lap("sync")
            clip_grad_norm_(model.parameters(), args.max_grad_norm)
            # SOLUTION(task1): update the weights
            optimizer.step()
            scheduler.step()
            record.lap("update")
        # SOLUTION(task1): evaluate on the dev set, and record.end_epoch the scores
        record.end_epoch(epoch, evaluate(model, task, splits, tokenizer, args, world))
    record.finish(model, tokenizer)


if __name__ == "__main__":
    run(main, __file__)
