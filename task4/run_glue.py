"""Task 4: profile the traffic of 2(b)'s synchronisation, or with --method of another's."""

import task2a.run_glue
import task2b.run_glue
from common.cli import Flag
from common.data.glue import find_glue_task
from common.data.loader import TrainingBatches, load_splits
from common.models.bert import load_model, weights_digest
from common.models.evaluate import evaluate
from common.models.optimizer import make_optimizer
from common.record.record import Record
from common.record.traffic import Traffic
from common.run import run
from common.workers.world import agree

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import clip_grad_norm_

FLAGS = [
    Flag("method", ("2a", "2b", "3"), "2b", "the task whose synchronisation is profiled"),
    Flag("gradient_dtype", ("float32", "bfloat16"), "float32", "of gradients on the wire"),
]
AVERAGE = {"2a": task2a.run_glue.average_gradients, "2b": task2b.run_glue.average_gradients}


def profiled(model, args, traffic):
    """--method's model and its average_gradients, with every collective's tensor recorded."""
    dtype = getattr(torch, args.gradient_dtype)
    if args.method != "3":
        return model, traffic.recording(in_dtype(AVERAGE[args.method], dtype))
    # SOLUTION(task3): wrap the model in DistributedDataParallel, with static_graph=True
    model = DistributedDataParallel(model, static_graph=True)

    def averaged_bucket(_, bucket):
        wire = bucket.buffer().to(dtype)
        traffic.note("all_reduce", wire)
        done = dist.all_reduce(wire, async_op=True).get_future()
        return done.then(
            lambda sums: bucket.buffer().copy_(sums.value()[0] / dist.get_world_size())
        )

    model.register_comm_hook(None, averaged_bucket)
    return model, lambda *_: None  # DistributedDataParallel has done it already


def in_dtype(average, dtype):
    """`average`, with gradients that travel in `dtype`: for bfloat16 half the bytes."""
    if dtype == torch.float32:
        return average

    def average_rounded(model, world):
        wire = torch.nn.ParameterList(p.detach().to(dtype) for p in with_gradient(model))
        for p, rounded in zip(with_gradient(model), wire, strict=True):
            rounded.grad = p.grad.to(dtype)
        average(wire, world)
        for p, rounded in zip(with_gradient(model), wire, strict=True):
            p.grad.copy_(rounded.grad)

    return average_rounded


def with_gradient(model):
    """The parameters that have a gradient."""
    return [p for p in model.parameters() if p.grad is not None]


def main(args, world):
    task = find_glue_task(args.task_name)
    model, tokenizer = load_model(args, task, world)
    splits = load_splits(args, task, tokenizer)
    agree(world, data=[split.digest for split in splits.values()], weights=weights_digest(model))
    batches = TrainingBatches(splits, tokenizer, args, world)
    record = Record(args, world, model, splits, batches)
    optimizer, scheduler = make_optimizer(model, args, record.updates)
    traffic = Traffic(args, world)
    model, average_gradients = profiled(model, args, traffic)

    for epoch in record.epochs():
        for step_batches in traffic.steps(record.steps(batches, epoch), epoch):
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
    traffic.finish()


if __name__ == "__main__":
    run(main, __file__, FLAGS)
