"""A model's gradients as one flat buffer: one collective for all of them, in place."""

import weakref

import torch

# Elements of the slices in which task 2(a) goes through the buffer: large enough that a
# collective's fixed cost is small beside it, small enough that rank 0's copies of one slice (7 MiB
# each) stay below 32 MiB, from where glibc's malloc asks the kernel for new pages every time.
SLICE = 7 * 2**18
_buffers = weakref.WeakKeyDictionary()  # model -> dtype -> (what is in it, the buffer)


def flat_gradients(model, dtype=None, spare=0):
    """All gradients of a model in one flat buffer, of which every parameter's `.grad` is a view.

    What is done to the buffer, or to slices of it, is done to the gradients. It is kept from step
    to step; gradients that are not in it yet, as after every `zero_grad()`, are copied into it.
    Frozen parameters, and those that the loss does not reach, have no gradient and are left out, on
    every rank alike; tied weights are one parameter with one gradient.

    Returns a tensor of one dimension, with room for `spare` more elements at its end. With `dtype`
    it holds the gradients of that type alone: one buffer cannot hold several types, and a TypeError
    names them.
    """
    held = [p for p in model.parameters() if p.grad is not None]
    held = [p for p in held if dtype in (None, p.grad.dtype)]
    types = {p.grad.dtype for p in held}
    if len(types) > 1:
        names = ", ".join(sorted(map(str, types)))
        raise TypeError(f"gradients of several types ({names}): pass one of them as `dtype`")
    if not held:
        return torch.zeros(spare)
    sizes = [p.numel() for p in held]
    key = spare, *map(id, held)
    known, buffer = _buffers.setdefault(model, {}).get(dtype, ((), None))
    if known != key:
        buffer = torch.zeros(sum(sizes) + spare, dtype=types.pop(), device=held[0].device)
        _buffers[model][dtype] = key, buffer
    parts = buffer.split([*sizes, spare])[: len(held)]
    views = [part.view_as(p) for part, p in zip(parts, held, strict=True)]
    outside = [pair for pair in zip(held, views, strict=True) if not same_memory(*pair)]
    if outside:
        torch._foreach_copy_([view for _, view in outside], [p.grad for p, _ in outside])
    for p, view in outside:
        p.grad = view
    return buffer


def gradient_buckets(model, size):
    """The trained parameters of a model in ParameterLists of at most `size` elements, or of one."""
    trained = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    return [torch.nn.ParameterList(p for _, p in bucket) for bucket in divide(trained, size)]


def divide(named, size):
    """Divide (name, parameter) pairs into lists of at most `size` elements, or of one parameter.

    The last layers' come first, as their gradients are ready first.
    """
    bucket, filled = [], 0
    for name, p in reversed(named):
        if bucket and filled + p.numel() > size:
            yield bucket
            bucket, filled = [], 0
        bucket.append((name, p))
        filled += p.numel()
    if bucket:
        yield bucket


def same_memory(p, view):
    """Whether a parameter's gradient lies where `view` does."""
    return p.grad.data_ptr() == view.data_ptr()
