"""Functions for task 7's scripts, right and wrong: a stage's passes, sums, means and clipping."""

from common.gradients import flat_gradients
from common.models.tensor_parallel import is_part

import torch
import torch.distributed as dist


def forward_unweighted(stage, batch, _):
    """Wrong: the micro-batches' mean losses are added up."""
    inputs = None
    if not stage.is_first:
        inputs = stage.receive(stage.shape_of(batch), stage.before).requires_grad_()
    outputs = stage(batch, inputs)
    if stage.is_last:
        return inputs, outputs.loss
    stage.send(outputs.detach(), stage.after)
    return inputs, outputs


def forward_alike(stage, batch, _):
    """Wrong: each of four micro-batches counts a quarter, whatever its rows."""
    inputs = None
    if not stage.is_first:
        inputs = stage.receive(stage.shape_of(batch), stage.before).requires_grad_()
    outputs = stage(batch, inputs)
    if stage.is_last:
        return inputs, outputs.loss / 4
    stage.send(outputs.detach(), stage.after)
    return inputs, outputs


def forward_without_grad(stage, batch, weight):
    """Wrong: nothing collects the inputs' gradients."""
    inputs = None
    if not stage.is_first:
        inputs = stage.receive(stage.shape_of(batch), stage.before)
    outputs = stage(batch, inputs)
    if stage.is_last:
        return inputs, outputs.loss * weight
    stage.send(outputs.detach(), stage.after)
    return inputs, outputs


def forward_detached(stage, batch, weight):
    """Wrong: the stage computes with a copy of its inputs that has no graph."""
    inputs = None
    if not stage.is_first:
        inputs = stage.receive(stage.shape_of(batch), stage.before).requires_grad_()
        inputs.grad = inputs.new_zeros(inputs.shape)
    outputs = stage(batch, None if inputs is None else inputs.detach())
    if stage.is_last:
        return inputs, outputs.loss * weight
    stage.send(outputs.detach(), stage.after)
    return inputs, outputs


def forward_on_four(stage, batch, weight):
    """Wrong: stage 3 is the last, however many there are."""
    inputs = None
    if not stage.is_first:
        inputs = stage.receive(stage.shape_of(batch), stage.before).requires_grad_()
    outputs = stage(batch, inputs)
    if stage.number == 3:
        return inputs, outputs.loss * weight
    stage.send(outputs.detach(), stage.after)
    return inputs, outputs


def forward_by_broadcast(stage, batch, weight):
    """Wrong: every stage's activations go to all workers."""
    import torch
    import torch.distributed as dist

    inputs = None
    tensor = torch.empty(stage.shape_of(batch))
    for number in range(stage.stages - 1):
        if number == stage.number:
            outputs = stage(batch, inputs)
            tensor = outputs.detach().clone()
        dist.broadcast(tensor, number)
        if number == stage.number - 1:
            inputs = tensor.clone().requires_grad_()
    if not stage.is_last:
        return inputs, outputs
    return inputs, stage(batch, inputs).loss * weight


def backward_of_ones(stage, inputs, outputs):
    """Wrong: what arrives for the outputs is not used."""
    if not stage.is_last:
        stage.receive(outputs.shape, stage.after)
    outputs.backward(outputs.new_ones(outputs.shape))
    if not stage.is_first:
        stage.send(inputs.grad, stage.before)


def clip_by_own_norm(stage, max_norm):
    """Wrong: every stage has another norm."""
    torch.nn.utils.clip_grad_norm_(stage.parameters(), max_norm)


def clip_parts_by_own_norm(model, max_norm):
    """Wrong: every worker has another norm."""
    torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)


def clip_counting_copies(model, max_norm):
    """Wrong: what all workers have is counted as often as there are workers."""
    squares = torch.nn.utils.get_total_norm([p.grad for p in model.parameters()]) ** 2
    dist.all_reduce(squares)
    torch.nn.utils.clip_grads_with_norm_(model.parameters(), max_norm, squares.sqrt())


def clip_by_gathered_norms(stage, max_norm):
    """Right: the norm of the stages' norms is that of all gradients."""
    mine = torch.nn.utils.get_total_norm([p.grad for p in stage.parameters()])
    norms = torch.empty(stage.stages)
    dist.all_gather_into_tensor(norms, mine.reshape(1), group=stage.world.parts_group)
    torch.nn.utils.clip_grads_with_norm_(stage.parameters(), max_norm, norms.norm())


def clip_parts_in_one_sum(model, max_norm):
    """Right: every worker adds its share of what all have."""
    parts = alike = torch.zeros(())
    for p in model.parameters():
        parts = parts + is_part(p) * p.grad.square().sum()
        alike = alike + (not is_part(p)) * p.grad.square().sum()
    squares = parts + alike / dist.get_world_size()
    dist.all_reduce(squares)
    torch.nn.utils.clip_grads_with_norm_(model.parameters(), max_norm, squares.sqrt())


def average_over_everyone(model, world):
    """Wrong: divides by the workers, of which only some hold this stage."""
    gradients = flat_gradients(model)
    dist.all_reduce(gradients, op=dist.ReduceOp.SUM, group=world.replicas_group)
    gradients /= world.size


def average_nothing(*_):
    """Wrong: every replica goes its own way."""


def average_each(model, world):
    """Right: a collective for each tensor."""
    for p in model.parameters():
        dist.all_reduce(p.grad, group=world.replicas_group)
        p.grad /= dist.get_world_size(world.replicas_group)
