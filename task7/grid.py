"""Task 7, 2 x 2: replicas of a pipeline, whose stages average their gradients."""

from common.gradients import flat_gradients
from common.layers import GRID_FLAGS
from common.load import load
from common.models.evaluate import evaluate
from common.models.optimizer import make_optimizer
from common.models.stage import Stage, clip_grad_norm
from common.record.record import Record
from common.run import run

import torch.distributed as dist


# SOLUTION(naive): compute a stage's part of a batch, and send what the next stage needs
def forward(stage, batch, weight):
    """Compute a stage's part of a batch; returns (its inputs or None, its outputs or the loss)."""
    inputs = None
    if not stage.is_first:
        inputs = stage.receive(stage.shape_of(batch), stage.before).requires_grad_()
    outputs = stage(batch, inputs)
    if stage.is_last:
        return inputs, outputs.loss * weight
    stage.send(outputs.detach(), stage.after)
    return inputs, outputs


# SOLUTION(naive): run the backward pass, and send the inputs' gradients back
def backward(stage, inputs, outputs):
    """Go back through a stage's part of a batch."""
    gradients = None if stage.is_last else stage.receive(outputs.shape, stage.after)
    outputs.backward(gradients)
    if not stage.is_first:
        stage.send(inputs.grad, stage.before)


# SOLUTION(grid): average a stage's gradients over the replicas, in world.replicas_group
def average_gradients(model, world):
    """Make a stage's gradients their mean over the replicas of the model."""
    gradients = flat_gradients(model)
    dist.all_reduce(gradients, op=dist.ReduceOp.SUM, group=world.replicas_group)
    gradients /= dist.get_world_size(world.replicas_group)


def main(args, world):
    model, data = load(args, world)
    model = Stage(model, args, world)
    optimizer, scheduler = make_optimizer(model, args, data.total_steps)
    record = Record(args, world, model, data, optimizer)
    for epoch in record.epochs():
        for batches in record.steps(data, epoch):
            optimizer.zero_grad()
            kept = []  # what the micro-batches on their way need to go back
            # SOLUTION(one_f_one_b): go back once more are kept than there are stages after this
            for batch, weight in batches:
                kept.append(forward(model, batch, weight))
                if len(kept) > model.stages_after:
                    oldest = kept.pop(0)
                    backward(model, *oldest)
            while kept:
                backward(model, *kept.pop(0))
            # SOLUTION(grid): average the gradients over the replicas, before they are clipped
            average_gradients(model, world)
            clip_grad_norm(model, args.max_grad_norm)
            # SOLUTION(task1): update the weights
            optimizer.step()
            scheduler.step()
        # SOLUTION(task1): evaluate on the dev set and pass the scores to record.end_epoch
        record.end_epoch(epoch, evaluate(model, data, world))
    record.finish(model)


if __name__ == "__main__":
    run(main, __file__, GRID_FLAGS)
