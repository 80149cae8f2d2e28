"""Task 5 with DistributedDataParallel: its mean over ranks becomes one over examples."""

from common.load import load
from common.models.evaluate import evaluate
from common.models.optimizer import make_optimizer
from common.record.record import Record
from common.run import run

from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import clip_grad_norm_


def main(args, world):
    model, data = load(args, world)
    # SOLUTION(task3): wrap the model in DistributedDataParallel, with static_graph=True
    model = DistributedDataParallel(model, static_graph=True)
    optimizer, scheduler = make_optimizer(model, args, data.total_steps)
    record = Record(args, world, model, data, optimizer)
    for epoch in record.epochs():
        for batches in record.steps(data, epoch):
            optimizer.zero_grad()
            for batch, weight in batches:  # one batch, unless gradients are accumulated
                loss = model(**batch).loss * weight
                # SOLUTION(uneven_ddp): scale the loss so that the mean is one over examples
                loss = loss * world.size * batches.examples / batches.total
                # SOLUTION(task1): run the backward pass, which fills every parameter's .grad
                loss.backward()
            clip_grad_norm_(model.parameters(), args.max_grad_norm)
            # SOLUTION(task1): update the weights
            optimizer.step()
            scheduler.step()
        # SOLUTION(task1): evaluate on the dev set and pass the scores to record.end_epoch
        record.end_epoch(epoch, evaluate(model, data, world))
    record.finish(model)


if __name__ == "__main__":
    run(main, __file__)
