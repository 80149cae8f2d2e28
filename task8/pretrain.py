"""Task 8: pre-train BERT from raw text, on masked words and pairs of sentences."""

from common.norms import clip_grad_norm_
from common.pretraining import evaluate, load, make_optimizer
from common.pretraining_flags import FLAGS
from common.record.pretraining import PretrainingRecord
from common.run import run
from task2b.run_glue import average_gradients

import torch
import torch.distributed as dist


# SOLUTION(task8): count masked tokens and rows, sum over all ranks, and set the weights
def weigh(batches, world):
    """Make each micro-batch's weights those with which the mean over the ranks is the step's mean.

    There are two: of its masked tokens among those of all micro-batches and ranks, and of its rows.
    """
    counts = [((batch["labels"] >= 0).sum(), len(batch["labels"])) for batch, _ in batches]
    counts = torch.tensor(counts, dtype=torch.float64, device=world.device)
    totals = counts.sum(0)
    dist.all_reduce(totals)
    weights = (world.size * counts / totals).float()
    batches[:] = [(batch, weight) for (batch, _), weight in zip(batches, weights, strict=True)]


def main(args, world):
    model, data = load(args, world)
    optimizer, scheduler, scaler = make_optimizer(model, args, data.total_steps)
    record = PretrainingRecord(args, world, model, data, optimizer, scaler)
    for epoch in record.epochs():
        for batches in record.steps(data, epoch):
            optimizer.zero_grad()
            weigh(batches, world)
            for batch, weight in batches:  # one batch, unless gradients are accumulated
                loss = (model(**batch).loss * weight).sum()  # of masked tokens, and of pairs
                # SOLUTION(task8): run the backward pass of the scaled loss
                scaler.scale(loss).backward()
            # SOLUTION(task8): average the gradients over the ranks, as in task 2(b)
            average_gradients(model, world)
            # SOLUTION(task8): divide the gradients by the loss scale, before they are clipped
            scaler.unscale_(optimizer)
            clip_grad_norm_(model.parameters(), args.max_grad_norm)
            # SOLUTION(task8): update the weights, unless a gradient has overflowed
            scaler.step(optimizer)
            if scaler.update():  # adapts the loss scale, and returns whether weights were updated
                scheduler.step()
        # SOLUTION(task1): evaluate on the dev set and pass the scores to record.end_epoch
        record.end_epoch(epoch, evaluate(model, data, world))
    record.finish(model)


if __name__ == "__main__":
    run(main, __file__, FLAGS)
