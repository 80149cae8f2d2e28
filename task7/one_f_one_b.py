"""Task 7, 1F1B: go back as soon as possible, so that a stage keeps few micro-batches."""

from common.layers import FLAGS
from common.load import load
from common.models.evaluate import evaluate
from common.models.optimizer import make_optimizer
from common.models.stage import Stage, clip_grad_norm
from common.record.record import Record
from common.run import run


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
            clip_grad_norm(model, args.max_grad_norm)
            # SOLUTION(task1): update the weights
            optimizer.step()
            scheduler.step()
        # SOLUTION(task1): evaluate on the dev set and pass the scores to record.end_epoch
        record.end_epoch(epoch, evaluate(model, data, world))
    record.finish(model)


if __name__ == "__main__":
    run(main, __file__, FLAGS)
