"""Task 4: profile the traffic of 2(b)'s synchronization, or with --method of another's."""

import task2a.run_glue
import task2b.run_glue
from common.flags import Flag
from common.load import load
from common.models.evaluate import evaluate
from common.models.optimizer import make_optimizer
from common.record.record import Record
from common.record.traffic import Traffic
from common.run import run

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import clip_grad_norm_

FLAGS = [
    Flag("method", ("2a", "2b", "3"), "2b", "the task whose synchronization is profiled"),
    Flag("gradient_dtype", ("float32", "bfloat16"), "float32", "type of gradients on the wire"),
]
AVERAGE = {"2a": task2a.run_glue.average_gradients, "2b": task2b.run_glue.average_gradients}


def profiled(model, args, traffic):
    """The average_gradients of --method, with the tensor of every collective recorded."""
    dtype = getattr(torch, args.gradient_dtype)
    if args.method != "3":
        return traffic.recording(in_dtype(AVERAGE[args.method], dtype))

    def averaged_bucket(_, bucket):
        wire = bucket.buffer().to(dtype)
        traffic.note("all_reduce", wire)
        done = dist.all_reduce(wire, async_op=True).get_future()
        return done.then(
            lambda sums: bucket.buffer().copy_(sums.value()[0] / dist.get_world_size())
        )

    model.register_comm_hook(None, averaged_bucket)
    return lambda *_: None  # DistributedDataParallel has averaged them already


def in_dtype(average, dtype):
    """`average`, with gradients that travel in `dtype`: for bfloat16 half the bytes."""
    if dtype == torch.float32:
        return average

    def average_rounded(model, world):
        held = [p for p in model.parameters() if p.grad is not None]
        wire = torch.nn.ParameterList(p.detach().to(dtype) for p in held)
        for p, rounded in zip(held, wire, strict=True):
            rounded.grad = p.grad.to(dtype)
        average(wire, world)
        for p, rounded in zip(held, wire, strict=True):
            p.grad.copy_(rounded.grad)

    return average_rounded


def main(args, world):
    model, data = load(args, world)
    traffic = Traffic(args, world)
    if args.method == "3":
        # SOLUTION(task3): wrap the model in DistributedDataParallel, with static_graph=True
        model = DistributedDataParallel(model, static_graph=True)
    average_gradients = profiled(model, args, traffic)
    optimizer, scheduler = make_optimizer(model, args, data.total_steps)
    record = Record(args, world, model, data, optimizer)
    for epoch in record.epochs():
        for batches in traffic.steps(record.steps(data, epoch), epoch):
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
    traffic.finish()


if __name__ == "__main__":
    run(main, __file__, FLAGS)
