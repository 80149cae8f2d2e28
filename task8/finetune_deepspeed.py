"""Task 8, RTE: fine-tune with DeepSpeed's engine in place of DistributedDataParallel."""

from common.engine import engine_config, import_deepspeed
from common.flags import Flag
from common.load import load
from common.models.evaluate import evaluate
from common.models.optimizer import make_optimizer
from common.record.record import Record
from common.run import run

FLAGS = [Flag("zero_stage", int, 0, "what DeepSpeed shards: 0 nothing, to 3 all", 0, 3)]


def main(args, world):
    deepspeed = import_deepspeed(world)
    model, data = load(args, world)
    optimizer, scheduler = make_optimizer(model, args, data.total_steps)
    # SOLUTION(finetune): initialize the engine
    model, *_ = deepspeed.initialize(
        model=model, optimizer=optimizer, lr_scheduler=scheduler, config=engine_config(args)
    )
    record = Record(args, world, model, data, optimizer)
    for epoch in record.epochs():
        for batches in record.steps(data, epoch):
            for batch, weight in batches:  # one batch, unless gradients are accumulated
                loss = model(**batch).loss * weight
                # SOLUTION(finetune): run the engine's backward pass
                model.backward(loss, scale_wrt_gas=False)
            # SOLUTION(finetune): let the engine average, unscale and clip, and update the weights
            model.step()
        # SOLUTION(task1): evaluate on the dev set and pass the scores to record.end_epoch
        record.end_epoch(epoch, evaluate(model, data, world))
    record.finish(model)


if __name__ == "__main__":
    run(main, __file__, FLAGS)
