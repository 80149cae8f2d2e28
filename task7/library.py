"""Task 7, library: the same pipelines with PyTorch's PipelineStage and schedules."""

from common.flags import Flag
from common.layers import FLAGS as PIPELINE_FLAGS
from common.load import load
from common.models.evaluate import evaluate
from common.models.optimizer import make_optimizer
from common.models.scheduled import alike, pipeline_stage
from common.models.stage import Stage, clip_grad_norm
from common.record.record import Record
from common.run import run

import torch
from torch.distributed.pipelining import Schedule1F1B, ScheduleGPipe, ScheduleInterleaved1F1B

SCHEDULES = {"1f1b": Schedule1F1B, "gpipe": ScheduleGPipe, "interleaved": ScheduleInterleaved1F1B}
FLAGS = [
    *PIPELINE_FLAGS,
    Flag("schedule", tuple(SCHEDULES), "1f1b", "the order of the passes"),
    Flag("chunks", int, 1, "stages of each worker, for --schedule interleaved", 1),
]


# SOLUTION(library): make a schedule of the stage's PipelineStage, and do its step
def forward_backward(stage, batches, args):
    """All passes of a stage, in the order of PyTorch's schedule."""
    whole = alike(batches, args.max_seq_length)
    rows, length = whole["input_ids"].shape
    weights = torch.tensor([weight for _, weight in batches])
    stages = [pipeline_stage(one, rows // len(batches), length) for one in stage.chunks]
    schedule = SCHEDULES[args.schedule](
        stages if args.schedule == "interleaved" else stages[0],
        n_microbatches=len(batches),
        loss_fn=lambda losses, weights: (losses * weights).sum(),
        scale_grads=False,  # by 1/m: the weights do so
    )
    inputs = [whole["input_ids"]] if stage.is_first else []
    schedule.step(*inputs, target=weights, return_outputs=False, **whole)


def main(args, world):
    args.padded = True  # the schedules have buffers of one shape
    model, data = load(args, world)
    model = Stage(model, args, world)
    optimizer, scheduler = make_optimizer(model, args, data.total_steps)
    record = Record(args, world, model, data, optimizer)
    for epoch in record.epochs():
        for batches in record.steps(data, epoch):
            optimizer.zero_grad()
            forward_backward(model, batches, args)
            clip_grad_norm(model, args.max_grad_norm)
            # SOLUTION(task1): update the weights
            optimizer.step()
            scheduler.step()
        # SOLUTION(task1): evaluate on the dev set and pass the scores to record.end_epoch
        record.end_epoch(epoch, evaluate(model, data, world))
    record.finish(model)


if __name__ == "__main__":
    run(main, __file__, FLAGS)
