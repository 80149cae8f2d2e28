"""MNIST's files: arrays of bytes in the IDX format, perhaps compressed."""

import gzip
import struct
from pathlib import Path

from common.errors import UserError

import numpy as np

BYTES = 8  # the format's code for unsigned bytes


def find_mnist(folder: str, split: str) -> tuple[np.ndarray, np.ndarray] | None:
    """(images, labels) of MNIST's "train" or "dev" set in a folder; None if it is not there."""
    name = {"train": "train", "dev": "t10k"}[split]
    images = find_idx(Path(folder), f"{name}-images-idx3-ubyte")
    labels = find_idx(Path(folder), f"{name}-labels-idx1-ubyte")
    return None if images is None or labels is None else (images, labels)


def find_idx(folder: Path, name: str) -> np.ndarray | None:
    """The array in folder/name or folder/name.gz; None if there is neither.

    Raises UserError for a file that is not in the format.
    """
    for path in (folder / name, folder / f"{name}.gz"):
        if path.is_file():
            try:
                data = path.read_bytes()
                return parse(gzip.decompress(data) if path.suffix == ".gz" else data)
            except (OSError, EOFError, ValueError, struct.error) as error:
                raise UserError(
                    f"--data_dir: {path} is not a valid IDX file ({error}); download it again"
                ) from None
    return None


def parse(data: bytes) -> np.ndarray:
    """The array in the bytes of an IDX file: a code, the sizes, and the elements."""
    zero, kind, dimensions = struct.unpack_from(">HBB", data)
    if zero or kind != BYTES or not dimensions:
        raise ValueError("it does not begin as one of bytes does")
    shape = struct.unpack_from(f">{dimensions}I", data, 4)
    return np.frombuffer(data, np.uint8, offset=4 + 4 * dimensions).reshape(shape)
