"""Task 8, DeepSpeed: the same pre-training, with DeepSpeed's engine in place of our update."""

from common.engine import LossScale, engine_config, import_deepspeed
from common.pretraining import evaluate, load, make_optimizer
from common.pretraining_flags import FLAGS
from common.record.pretraining import PretrainingRecord
from common.run import run
from task8.pretrain import weigh


def main(args, world):
    deepspeed = import_deepspeed(world)
    model, data = load(args, world)
    optimizer, scheduler, _ = make_optimizer(model, args, data.total_steps)
    # SOLUTION(deepspeed): initialize the engine with model, optimizer, scheduler, and config
    model, *_ = deepspeed.initialize(
        model=model, optimizer=optimizer, lr_scheduler=scheduler, config=engine_config(args)
    )
    record = PretrainingRecord(args, world, model, data, optimizer, LossScale(model))
    for epoch in record.epochs():
        for batches in record.steps(data, epoch):
            weigh(batches, world)
            for batch, weight in batches:  # one batch, unless gradients are accumulated
                loss = (model(**batch).loss * weight).sum()  # of masked tokens, and of pairs
                # SOLUTION(deepspeed): run the engine's backward pass; scale nothing
                model.backward(loss, scale_wrt_gas=False)
            # SOLUTION(deepspeed): let the engine average, unscale and clip, and update the weights
            model.step()
        # SOLUTION(task1): evaluate on the dev set and pass the scores to record.end_epoch
        record.end_epoch(epoch, evaluate(model, data, world))
    record.finish(model)


if __name__ == "__main__":
    run(main, __file__, FLAGS)
