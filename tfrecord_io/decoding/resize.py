"""Resizes pictures to the stored size: by a kernel in C where it was built, else by Pillow.

The kernel (`_resize.c`) does Pillow's arithmetic, so both give the same bytes, in a seventh of the
time. It is for pictures of eight bits, and for those filters whose weights are the same on every
processor: those of `bicubic` and `lanczos` depend on how a compiler fuses operations.
"""

from __future__ import annotations

import functools
import importlib
import threading
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
from PIL import Image

from tfrecord_io.decoding.options import Preprocessing

try:
    _kernel: Any = importlib.import_module("tfrecord_io.decoding._resize")
except ImportError:  # there was no compiler, or it was built for another machine
    _kernel = None

# Pillow's filters (Resample.c): how many old pixels they reach, and their weight at a distance.
_FILTERS: Mapping[str, tuple[float, Callable[[np.ndarray], np.ndarray]]] = {
    "bilinear": (1.0, lambda distance: np.maximum(1 - np.abs(distance), 0)),
    "box": (0.5, lambda distance: (distance > -0.5) & (distance <= 0.5)),
}

# As in `_resize.c`.
_WEIGHT_BITS, _LANES = 22, 64

# The kernel's memory is kept, because taking it anew for each picture costs page faults. Pictures
# that need more are resized by Pillow.
_MAX_SCRATCH_BYTES = 32 * 2**20

_kept = threading.local()


def resizer(resize: str = "bilinear") -> str:
    """Returns what resizes here with these options, in words for a user."""
    if _kernel is None:
        return "Pillow (the C kernel was not built)"
    return "the C kernel" if resize in _FILTERS else "Pillow"


def stored_pixels(
    image: Image.Image, box: tuple[int, int, int, int], preprocessing: Preprocessing
) -> bytes:
    """Returns the pixels of a picture of mode L or RGB in the stored size.

    The picture comes into the box, see `Preprocessing.box`; the rest is black.
    """
    pixels = _by_kernel(image, box, preprocessing)
    return _by_pillow(image, box, preprocessing).tobytes() if pixels is None else pixels


def _by_pillow(
    image: Image.Image, box: tuple[int, int, int, int], preprocessing: Preprocessing
) -> Image.Image:
    left, top, right, bottom = box
    how = Image.Resampling[preprocessing.resize.upper()]
    resized = image.resize((right - left, bottom - top), how)
    if preprocessing.fit == "stretch":
        return resized
    padded = Image.new(image.mode, (preprocessing.width, preprocessing.height))
    padded.paste(resized, (left, top))
    return padded


def _by_kernel(
    image: Image.Image, box: tuple[int, int, int, int], preprocessing: Preprocessing
) -> bytes | None:
    """Returns the pixels of a picture of eight bits, or None if Pillow must resize it."""
    name = preprocessing.resize
    if _kernel is None or name not in _FILTERS or image.mode not in ("L", "RGB"):
        return None
    if image.height > 100 * image.width:  # Pillow may shrink the height first
        return None
    left, top, right, bottom = box
    width, height = right - left, bottom - top
    unit = 1 if image.mode == "L" else 4  # Pillow has a fourth byte in a pixel of RGB
    row_bytes = -(-width * unit // _LANES) * _LANES
    # A strip of 64 rows, old and new, transposed; all rows in the new width; the new picture.
    num_bytes = _LANES * (image.width + width) * unit
    num_bytes += row_bytes * (image.height + _LANES - 1 + height)
    if num_bytes > _MAX_SCRATCH_BYTES:
        return None
    # Pillow 12.3 ends the process if the pixels are those of an array (Pillow#9896).
    owned = image.copy() if image.readonly else image
    try:
        pixels = pa.array(owned).buffers()[-1]  # not a copy
    except ValueError:  # they are in several blocks of memory
        return None
    if len(memory := getattr(_kept, "memory", b"")) < num_bytes:
        memory = _kept.memory = bytearray(num_bytes)
    columns, rows = _weights(image.width, width, name), _weights(image.height, height, name)
    stored = np.zeros(preprocessing.image_shape[:2] + ((3,) if unit == 4 else ()), np.uint8)
    step = stored.strides[0]
    _kernel.resize(
        pixels, image.width, unit, columns, rows, width, height, memory, stored,
        top * step + left * stored.strides[1], step,
    )  # fmt: skip
    return stored.tobytes()


@functools.lru_cache(maxsize=32)
def _weights(old_size: int, new_size: int, name: str) -> np.ndarray:
    """Returns the weights of one side, int32 [new_size, 2 + the largest number of old pixels].

    A row has the first old pixel, the number of old ones, and their weights, which add up to
    2**22 but for rounding.
    """
    support, weight_at = _FILTERS[name]
    scale = old_size / new_size
    reach = max(scale, 1.0)
    centers = (np.arange(new_size) + 0.5) * scale
    first = np.maximum((centers - support * reach + 0.5).astype(np.int64), 0)
    counts = np.minimum((centers + support * reach + 0.5).astype(np.int64), old_size) - first
    places = np.arange(counts.max())
    distances = (first[:, None] + places - centers[:, None] + 0.5) * (1 / reach)
    weights = np.where(places < counts[:, None], weight_at(distances), 0.0)
    weights /= np.cumsum(weights, axis=1)[:, -1:]  # added from the left, as Pillow does
    rounded = (weights * (1 << _WEIGHT_BITS) + 0.5).astype(np.int32)
    return np.column_stack([first, counts, rounded]).astype(np.int32)
