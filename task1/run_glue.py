"""Task 1: fine-tune BERT on GLUE with one worker."""

from common.data.glue import find_glue_task
from common.data.loader import TrainingBatches, load_splits
from common.models.bert import load_model, weights_digest
from common.models.evaluate import evaluate
from common.models.optimizer import make_optimizer
from common.record.record import Record
from common.run import run
from common.workers.world import agree

from torch.nn.utils import clip_grad_norm_


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
