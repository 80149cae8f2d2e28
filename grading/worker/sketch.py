"""Tensors as a few numbers that preserve linear combinations and distances."""

import base64
import functools
import zlib

import numpy as np

WIDTH = 16  # numbers per tensor: a distance is estimated to about a third, equality to the last bit


@functools.lru_cache(maxsize=256)
def signs(size: int) -> np.ndarray:
    """`size` random signs, padded with zeros to a multiple of WIDTH; the same in every process."""
    generator = np.random.Generator(np.random.PCG64(size))
    padded = np.zeros(-(-size // WIDTH) * WIDTH)
    padded[:size] = generator.integers(0, 2, size) * 2.0 - 1.0
    return padded.reshape(-1, WIDTH)


def sketch(tensor, start: int = 0, size: int | None = None) -> np.ndarray:
    """A tensor's count sketch, as `sketch_of` makes it."""
    return sketch_of(tensor.detach().float().cpu().contiguous().numpy(), start, size)


def sketch_of(array: np.ndarray, start: int = 0, size: int | None = None) -> np.ndarray:
    """An array's count sketch: float64 of shape (WIDTH,), linear in the array.

    Of a part of an array of `size` elements, from `start` on, it is that with zeros for the rest.

    The squared norm of a difference of sketches is, on average, that of the arrays' difference.
    Source: Charikar, Chen, Farach-Colton, "Finding frequent items in data streams", 2002.
    """
    flat = array.reshape(-1)
    weights = signs(size or flat.size)
    padded = np.zeros(weights.size)
    padded[start : start + flat.size] = flat
    return np.einsum("ij,ij->j", padded.reshape(weights.shape), weights)


def magnitudes(tensors) -> np.ndarray:
    """How many elements are not 0, the sum of |x|^(1/2), and the sum of |x|, of all tensors.

    They add up over tensors, buckets and slices, in any order and whatever the padding, and a
    factor leaves the first, and the second's square over the third, as they are. None is moved
    much by a few large elements, such as a loss that travels with gradients.
    """
    total = np.zeros(3)
    for tensor in tensors:
        values = np.abs(tensor.detach().float().cpu().reshape(-1).numpy())
        total += np.count_nonzero(values), np.sqrt(values).sum(), values.sum(dtype=np.float64)
    return total


def checksum(tensor) -> int:
    """CRC-32 of a tensor's bytes: it differs where one bit does."""
    return zlib.crc32(tensor.detach().cpu().contiguous().reshape(-1).numpy().view(np.uint8))


def pack(array: np.ndarray) -> list:
    """An array as JSON: its type, shape and bytes in base64."""
    array = np.ascontiguousarray(array)
    return [array.dtype.str, list(array.shape), base64.b64encode(array.tobytes()).decode()]


def unpack(packed: list) -> np.ndarray:
    """The array that was packed; ValueError or TypeError for anything else."""
    kind, shape, text = packed
    if kind not in ("<f8", "<i8", "<i4", "<f4", "|b1", "<u4"):
        raise ValueError(f"an array of {kind}")
    return np.frombuffer(base64.b64decode(text), dtype=kind).reshape(shape)
