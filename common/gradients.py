"""Gradients as a few large flat buffers: a collective per buffer, not one per parameter."""

import torch

# Large enough that a collective's fixed cost is small beside it; small enough that the copies of
# four ranks together stay below 32 MiB, from where glibc's malloc asks the kernel for new pages
# every time (measured: that doubles the time of gather and scatter).
BUCKET_BYTES = 7 * 2**20


def gradient_buckets(model, bucket_bytes=BUCKET_BYTES):
    """Yield the model's gradients as flat buffers of at most `bucket_bytes`.

    What the caller leaves in a buffer becomes the gradients' new values. A collective has a fixed
    cost, and BERT has 200 parameters, most of them small: one collective for each would wait most
    of the time. Frozen parameters, and those that the loss does not reach, have no gradient and
    are left out, on every rank alike; tied weights are one parameter with one gradient.
    """
    pieces, room = [], bucket_bytes
    for gradient in [p.grad for p in model.parameters() if p.grad is not None]:
        flat, size = gradient.view(-1), gradient.element_size()
        while flat.numel():
            if pieces and (room < size or pieces[0].dtype != flat.dtype):
                yield from as_one(pieces)
                pieces, room = [], bucket_bytes
            piece, flat = flat[: room // size], flat[room // size :]
            pieces.append(piece)
            room -= piece.numel() * size
    if pieces:
        yield from as_one(pieces)


def as_one(pieces):
    """Yield the pieces joined in one buffer, then copy it back into them (none if it is one)."""
    if len(pieces) == 1:
        yield pieces[0]
        return
    bucket = torch.cat(pieces)
    yield bucket
    torch._foreach_copy_(pieces, bucket.split([piece.numel() for piece in pieces]))
