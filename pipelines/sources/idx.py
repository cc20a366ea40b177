"""Reads IDX files of unsigned bytes, the format of MNIST and Fashion-MNIST.

The format is described at http://yann.lecun.com/exdb/mnist/: two zero bytes, a type code, the
number of dimensions, each dimension as a big-endian uint32, then the values in row-major order.
"""

import gzip
import math
import zlib
from pathlib import Path
from typing import IO

import numpy as np
from numpy.typing import NDArray

_UNSIGNED_BYTE = 0x08  # The type code of uint8, the only supported one.
_TYPE_NAMES = {
    0x08: "uint8",
    0x09: "int8",
    0x0B: "int16",
    0x0C: "int32",
    0x0D: "float32",
    0x0E: "float64",
}
_MOST_DIMENSIONS = 3
# Limits the memory allocated for a damaged header. The largest published file has 47 MB.
_MOST_BYTES = 1 << 30


def read_idx(path: Path) -> NDArray[np.uint8]:
    """Reads an IDX file of unsigned bytes, gzipped or not.

    Args:
        path: the file; gzip is recognised by the first two bytes, not by the name.

    Returns:
        uint8 array of the header's shape: [num_images, height, width] for images, [num_labels]
        for labels.

    Raises:
        FileNotFoundError: if the file does not exist.
        ValueError: if it is not an IDX file of unsigned bytes, is too short or too long, or is a
            damaged gzip file. The message names the file, what was expected and what was found.
    """
    with path.open("rb") as raw:
        is_gzip = raw.read(2) == b"\x1f\x8b"
    try:
        with gzip.open(path) if is_gzip else path.open("rb") as file:
            shape = _read_header(file, path)
            num_bytes = math.prod(shape)
            values = file.read(num_bytes)
            if len(values) < num_bytes:
                raise ValueError(
                    f"{path}: expected {num_bytes} bytes of values for shape {list(shape)}, "
                    f"got {len(values)}: the file is cut short. Download it again."
                )
            # Reads to the end, because gzip compares its CRC there.
            if file.read(1):
                raise ValueError(
                    f"{path}: expected the file to end after {num_bytes} bytes of values for shape "
                    f"{list(shape)}, got more. It is damaged, or not what its name says."
                )
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise ValueError(
            f"{path}: expected a whole gzip file, got a damaged one ({error}). Download it again."
        ) from error
    return np.frombuffer(values, dtype=np.uint8).reshape(shape)


def _read_header(file: IO[bytes], path: Path) -> tuple[int, ...]:
    """Returns the shape; leaves the file at the first value."""
    magic = file.read(4)
    if len(magic) < 4 or magic[:2] != b"\x00\x00":
        raise ValueError(
            f"{path}: expected an IDX file, which begins with two zero bytes, a type and a number "
            f"of dimensions; got {magic.hex(' ') or 'an empty file'}."
        )
    type_code, num_dimensions = magic[2], magic[3]
    if type_code != _UNSIGNED_BYTE:
        raise ValueError(
            f"{path}: expected IDX values of type uint8 (0x08), got "
            f"{_TYPE_NAMES.get(type_code, 'an unknown type')} (0x{type_code:02x})."
        )
    if not 1 <= num_dimensions <= _MOST_DIMENSIONS:
        raise ValueError(
            f"{path}: expected 1 dimension (labels) to {_MOST_DIMENSIONS} (images), "
            f"got {num_dimensions}."
        )
    header = file.read(4 * num_dimensions)
    if len(header) < 4 * num_dimensions:
        raise ValueError(
            f"{path}: expected {num_dimensions} dimensions of 4 bytes each, got {len(header)} "
            "bytes: the file is cut short. Download it again."
        )
    shape = tuple(int(size) for size in np.frombuffer(header, dtype=">u4"))
    if math.prod(shape) > _MOST_BYTES:
        raise ValueError(
            f"{path}: expected at most {_MOST_BYTES} bytes of values, but the header's shape "
            f"{list(shape)} asks for {math.prod(shape)}: the header is damaged."
        )
    return shape
