"""Task 2(b), further: start each bucket's all_reduce while the backward pass goes on."""

from common.gradients import flat_gradients, gradient_buckets
from common.load import load
from common.models.evaluate import evaluate
from common.models.optimizer import make_optimizer
from common.record.record import Record
from common.run import run

import torch
import torch.distributed as dist
from torch.nn.utils import clip_grad_norm_

BUCKET = 25 * 2**18  # elements, 25 MiB: large beside a collective's fixed cost


# SOLUTION(overlap): start each bucket's all_reduce when its gradients are ready; wait for all
def overlapped(model, world):
    """Average gradients in buckets, each from the moment when its last gradient is ready.

    Returns an average_gradients that waits for what the backward pass has not hidden. As with
    DistributedDataParallel, accumulated gradients are averaged after every backward pass.
    """
    buckets = gradient_buckets(model, BUCKET)  # the last layers' first
    missing, sums = {}, []

    def gradient_ready(number):
        missing[number] -= 1
        start_complete_buckets()

    def start_complete_buckets():
        while len(sums) < len(buckets) and not missing[len(sums)]:  # on all ranks in this order
            gradients = flat_gradients(buckets[len(sums)])
            sums.append(dist.all_reduce(gradients, async_op=True).get_future())

    def average_gradients(*_):
        missing.update(dict.fromkeys(missing, 0))  # the loss does not reach what is missing still
        start_complete_buckets()
        torch.futures.wait_all(sums)
        sums.clear()
        for number, bucket in enumerate(buckets):
            flat_gradients(bucket).div_(world.size)
            missing[number] = len(bucket)

    for number, bucket in enumerate(buckets):
        missing[number] = len(bucket)
        for p in bucket.parameters():
            p.register_post_accumulate_grad_hook(lambda _, number=number: gradient_ready(number))
    model.register_forward_pre_hook(lambda *_: average_gradients() if sums else None)
    return average_gradients


def main(args, world):
    model, data = load(args, world)
    average_gradients = overlapped(model, world)
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
