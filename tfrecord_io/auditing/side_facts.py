"""Computes side facts of stored pictures, such as brightness."""

from __future__ import annotations

import numpy as np

from tfrecord_io import visible
from tfrecord_io.auditing import near_duplicates

# JPEG compression leaves a white area slightly below 255.
_WHITE = 250


def side_facts(pictures: np.ndarray) -> dict[str, np.ndarray]:
    """Returns the side facts of some pictures.

    Args:
        pictures: uint8 or uint16 [num_pictures, height, width, channels].

    Returns:
        `brightness`: float64 [num_pictures], mean of the picture in grey, 0..255, where 255 is
            the largest value of the pictures' type;
        `white_border`: float64 [num_pictures], see `white_border`;
        `perceptual_hash`: uint8 [num_pictures, 32], see `near_duplicates.perceptual_hash`.
    """
    thumbnails = near_duplicates.thumbnails(visible.eight_bits(pictures))
    # The thumbnails of deeper pictures are stretched, so they do not tell the brightness.
    counted = thumbnails[..., np.newaxis] if pictures.dtype == np.uint8 else pictures
    return {
        "brightness": counted.mean(axis=(1, 2, 3)) / _scale(pictures),
        "white_border": white_border(pictures),
        "perceptual_hash": near_duplicates.perceptual_hash(thumbnails),
    }


def white_border(pictures: np.ndarray) -> np.ndarray:
    """Returns the white share of each picture's border of one pixel, as scans are padded white.

    Args:
        pictures: uint8 or uint16 [num_pictures, height, width, channels].

    Returns:
        float64 [num_pictures], 0..1.
    """
    num_pictures, height, width, channels = pictures.shape
    is_border = np.ones((height, width), bool)
    is_border[1:-1, 1:-1] = False
    # By places in one row, which takes half as long as by a mask of rows and columns.
    pixels = pictures.reshape(num_pictures, height * width, channels)
    ring = pixels[:, np.flatnonzero(is_border)]
    return (ring >= _WHITE * _scale(pictures)).mean(axis=(1, 2))


def _scale(pictures: np.ndarray) -> int:
    """Returns what stands for one of 255 levels: 1 in uint8, 257 in uint16."""
    return int(np.iinfo(pictures.dtype).max) // 255
