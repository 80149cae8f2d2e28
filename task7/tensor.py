"""Task 7, tensors: divide each layer's matrices over the workers, who compute it together."""

from common.load import load
from common.models.evaluate import evaluate
from common.models.optimizer import make_optimizer
from common.models.tensor_parallel import blocks_of, clip_grad_norm, keep_part, prepare
from common.record.record import Record
from common.run import run

import torch
import torch.distributed as dist
from torch.nn.functional import linear


class Copy(torch.autograd.Function):
    """The same inputs for every worker's part; their gradient is the sum of all parts'."""

    @staticmethod
    def forward(_ctx, inputs):
        return inputs.view_as(inputs)

    # SOLUTION(tensor): add the gradients of all workers' parts up, in a copy
    @staticmethod
    def backward(_ctx, gradients):
        gradients = gradients.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(gradients)
        return gradients


class Sum(torch.autograd.Function):
    """The sum of all workers' outputs; the gradient of each is that of the sum."""

    # SOLUTION(tensor): add all workers' outputs up, in a copy
    @staticmethod
    def forward(_ctx, outputs):
        outputs = outputs.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(outputs)
        return outputs

    @staticmethod
    def backward(_ctx, gradients):
        return gradients


def divide(model, args, world):
    """Divide the matrices of each layer: by rows those that read its inputs, by columns the next.

    A worker's columns take just what its rows compute, so that in between nothing is sent.
    """
    prepare(model, args, world)
    for block, first, second in blocks_of(model):
        block.register_forward_pre_hook(lambda _, inputs: (Copy.apply(inputs[0]), *inputs[1:]))
        for one in first:
            keep_part(one, world, dim=0)  # the forward pass of these stays as it is
        keep_part(second, world, dim=1)
        # SOLUTION(tensor): sum the parts' outputs, and then add the bias, which every worker has
        second.forward = lambda x, own=second: Sum.apply(linear(x, own.weight)) + own.bias


def main(args, world):
    model, data = load(args, world)
    divide(model, args, world)
    optimizer, scheduler = make_optimizer(model, args, data.total_steps)
    record = Record(args, world, model, data, optimizer)
    for epoch in record.epochs():
        for batches in record.steps(data, epoch):
            optimizer.zero_grad()
            for batch, weight in batches:  # one batch, unless gradients are accumulated
                loss = model(**batch).loss * weight
                # SOLUTION(task1): run the backward pass, which fills every parameter's .grad
                loss.backward()
            clip_grad_norm(model, args.max_grad_norm)
            # SOLUTION(task1): update the weights
            optimizer.step()
            scheduler.step()
        # SOLUTION(task1): evaluate on the dev set and pass the scores to record.end_epoch
        record.end_epoch(epoch, evaluate(model, data, world))
    record.finish(model)


if __name__ == "__main__":
    run(main, __file__)
