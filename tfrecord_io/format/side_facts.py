"""Side facts of stored pictures, computed while a shard is written: brightness, border and hash.

A perceptual hash takes 32 bytes per picture, so `twins` searches a million of them in memory.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from PIL import Image

from tfrecord_io.decoding.augment import WHITE
from tfrecord_io.format.examples import HASH_LENGTH

# Rows and columns of the thumbnail from which the hash is computed.
_SIDE = 32

# With so few pictures a linear algebra library starts no threads, which would disturb the other
# workers of the machine.
_HASHED_AT_ONCE = 16

# Rows of the DCT-II, rounded to integers. Sums of products of such small integers are exact in
# float64, so the hash does not depend on the order in which a linear algebra library adds.
_FREQUENCIES = 16
_TURNS = np.outer(np.arange(_FREQUENCIES), 2 * np.arange(_SIDE) + 1) / (2 * _SIDE)
_DCT = np.round(1024 * np.cos(np.pi * _TURNS))
_DCT_OF_ONES = np.outer(_DCT.sum(axis=1), _DCT.sum(axis=1))
# The hash leaves out the first coefficient, the mean. The order of the others gives every byte low
# and high frequencies, because the search sorts by a few neighbouring bytes at a time.
_NUM_BITS = _FREQUENCIES * _FREQUENCIES - 1
_BIT_ORDER = np.append(1 + (np.arange(_NUM_BITS) * 97) % _NUM_BITS, 0)


def side_facts(
    pictures: np.ndarray, boxes: Sequence[tuple[int, int, int, int] | None] = ()
) -> dict[str, np.ndarray]:
    """Returns the side facts of some pictures.

    Args:
        pictures: uint8 [num_pictures, height, width, channels].
        boxes: left, top, right and bottom of the part of each that is hashed; None for all of it.

    Returns:
        `brightness`: float64 [num_pictures], mean of the picture in grey, 0..255;
        `white_border`: float64 [num_pictures], 0..1, the white share of the border of one pixel,
            as scans are padded white;
        `perceptual_hash`: uint8 [num_pictures, 32].
    """
    num_pictures, height, width, channels = pictures.shape
    small = thumbnails(pictures)
    is_border = np.ones((height, width), bool)
    is_border[1:-1, 1:-1] = False
    # By places in one row, which takes half as long as by a mask of rows and columns.
    pixels = pictures.reshape(num_pictures, height * width, channels)
    ring = pixels[:, np.flatnonzero(is_border)]
    brightness = small.mean(axis=(1, 2))
    for place, box in enumerate(boxes):
        if box and box != (0, 0, width, height):
            left, top, right, bottom = box
            small[place] = thumbnails(pictures[place : place + 1, top:bottom, left:right])[0]
    return {
        "brightness": brightness,
        "white_border": (ring >= WHITE).mean(axis=(1, 2)),
        "perceptual_hash": perceptual_hash(small),
    }


def thumbnails(pictures: np.ndarray) -> np.ndarray:
    """Returns small grey versions of pictures, in which each pixel is the mean of its area.

    Args:
        pictures: uint8 [num_pictures, height, width, channels].

    Returns:
        uint8 [num_pictures, 32, 32].
    """
    num_pictures, height, width, channels = pictures.shape
    if channels == 1:
        grey = pictures[..., 0]
    else:  # converts all pictures at once, stacked into one
        colour = Image.fromarray(pictures.reshape(-1, width, channels))
        grey = np.asarray(colour.convert("L")).reshape(num_pictures, height, width)
    if height % _SIDE == 0 and width % _SIDE == 0:
        # Halves are rounded up. Pillow's `reduce` takes twice as long, and rounds in fixed point.
        rows, columns = height // _SIDE, width // _SIDE
        half = rows * columns // 2
        is_small = 255 * rows * columns + half <= np.iinfo(np.uint16).max
        dtype = np.uint16 if is_small else np.uint32
        in_columns = grey[:, ::rows].astype(dtype)
        for row in range(1, rows):
            in_columns += grey[:, row::rows]
        sums = in_columns[..., ::columns] + dtype(half)
        for column in range(1, columns):
            sums += in_columns[..., column::columns]
        return (sums // (rows * columns)).astype(np.uint8)
    small = np.empty((num_pictures, _SIDE, _SIDE), np.uint8)
    for number, picture in enumerate(grey):
        small[number] = Image.fromarray(picture).resize((_SIDE, _SIDE), Image.Resampling.BOX)
    return small


def perceptual_hash(thumbnails: np.ndarray) -> np.ndarray:
    """Returns the perceptual hash of each picture: 255 bits that copies nearly share, and a one.

    Each bit is the sign of one of the lowest 16x16 coefficients of the discrete cosine transform
    without the mean, so brightness and contrast do not matter. Source: Zauner 2010,
    "Implementation and Benchmarking of Perceptual Image Hash Functions", ch. 3, which uses 64 bits
    and compares with the median instead of zero.

    Args:
        thumbnails: uint8 [num_pictures, 32, 32], see `thumbnails`.

    Returns:
        uint8 [num_pictures, HASH_LENGTH]; all zero for a picture of one colour.
    """
    hashes = np.empty((len(thumbnails), HASH_LENGTH), np.uint8)
    for first in range(0, len(thumbnails), _HASHED_AT_ONCE):
        some = thumbnails[first : first + _HASHED_AT_ONCE]
        # The sums along the rows stay below 2**24, so they are exact in float32 too.
        rows = some.reshape(-1, _SIDE).astype(np.float32) @ _DCT.T.astype(np.float32)
        rows = rows.reshape(len(some), _SIDE, _FREQUENCIES).astype(np.float64)
        # Less the mean, times the number of pixels: integers, and zeros for a single colour.
        sums = some.sum(axis=(1, 2), dtype=np.int64)
        coefficients = _SIDE**2 * (_DCT @ rows) - np.multiply.outer(sums, _DCT_OF_ONES)
        coefficients = coefficients.reshape(len(some), -1)
        bits = coefficients[:, _BIT_ORDER] > 0
        bits[:, -1] = coefficients.any(axis=1)
        hashes[first : first + len(some)] = np.packbits(bits, axis=1)
    return hashes
