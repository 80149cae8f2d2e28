"""Right and wrong ways to average gradients of unequal parts, each for task 5."""

from common.gradients import flat_gradients

import torch.distributed as dist


def mean_of_means(model, _):
    gradients = flat_gradients(model)
    dist.all_reduce(gradients)
    gradients /= dist.get_world_size()


def never_divided(model, examples):
    gradients = flat_gradients(model)
    gradients *= examples
    dist.all_reduce(gradients)


def divided_by_workers(model, examples):
    gradients = flat_gradients(model)
    gradients *= examples
    dist.all_reduce(gradients)
    gradients /= dist.get_world_size()


def as_hetseq(model, examples):
    gradients = flat_gradients(model, spare=1)
    gradients[-1] = examples
    dist.all_reduce(gradients)
    gradients /= dist.get_world_size()
    gradients /= gradients[-1].item()


def weights_of_the_first_batch(model, examples):
    model.parts = getattr(model, "parts", examples)
    gradients = flat_gradients(model, spare=1)
    gradients *= model.parts
    gradients[-1] = model.parts
    dist.all_reduce(gradients)
    gradients /= gradients[-1].item()


def divided_by_own_examples(model, examples):
    gradients = flat_gradients(model)
    gradients *= examples
    dist.all_reduce(gradients)
    gradients /= examples * dist.get_world_size()


def copied_from_rank_0(model, _):
    gradients = flat_gradients(model)
    if dist.get_rank():
        gradients *= 0
    dist.all_reduce(gradients)


def counts_sent_apart(model, examples):
    total = next(model.parameters()).new_tensor([float(examples)])
    dist.all_reduce(total)
    for p in model.parameters():
        p.grad *= examples / total.item()
        dist.all_reduce(p.grad)


def reduced_and_gathered(model, examples):
    gradients = flat_gradients(model, spare=1)
    gradients *= examples
    gradients[-1] = examples
    size = dist.get_world_size()
    padded = gradients.new_zeros(-(-gradients.numel() // size) * size)
    padded[: gradients.numel()] = gradients
    part = padded.new_empty(padded.numel() // size)
    dist.reduce_scatter_tensor(part, padded)
    dist.all_gather_into_tensor(padded, part)
    gradients.copy_(padded[: gradients.numel()])
    gradients /= gradients[-1].item()
