"""Computes side facts of stored pictures, such as brightness, for many pictures at a time."""

from __future__ import annotations

import numpy as np

from tfrecord_io import visible
from tfrecord_io.auditing import near_duplicates

# JPEG compression leaves a white area slightly below 255.
_WHITE = 250


class SideFacts:
    """Collects the side facts of pictures of one size, in the order in which they are added."""

    def __init__(self) -> None:
        self._thumbnails = [np.empty((0, *near_duplicates.THUMBNAIL_SHAPE), np.uint8)]
        self._brightness = [np.empty(0)]
        self._white_borders = [np.empty(0)]

    def add(self, pictures: np.ndarray) -> None:
        """Adds the facts of some pictures, without keeping the pictures.

        Args:
            pictures: uint8 or uint16 [num_pictures, height, width, channels].
        """
        thumbnails = near_duplicates.thumbnails(visible.eight_bits(pictures))
        self._thumbnails.append(thumbnails)
        # The thumbnails of deeper pictures are stretched, so they do not tell the brightness.
        counted = thumbnails[..., np.newaxis] if pictures.dtype == np.uint8 else pictures
        self._brightness.append(counted.mean(axis=(1, 2, 3)) / _scale(pictures))
        self._white_borders.append(white_border(pictures))

    def columns(self) -> dict[str, np.ndarray]:
        """Returns the facts of all pictures.

        Returns:
            `brightness`: float64 [num_pictures], mean of the picture in grey, 0..255, where 255 is
                the largest value of the pictures' type;
            `white_border`: float64 [num_pictures], see `white_border`;
            `perceptual_hash`: uint8 [num_pictures, 32], see `near_duplicates.perceptual_hash`.
        """
        thumbnails = np.concatenate(self._thumbnails)
        return {
            "brightness": np.concatenate(self._brightness),
            "white_border": np.concatenate(self._white_borders),
            "perceptual_hash": near_duplicates.perceptual_hash(thumbnails),
        }


def white_border(pictures: np.ndarray) -> np.ndarray:
    """Returns the white share of each picture's border of one pixel, as scans are padded white.

    Args:
        pictures: uint8 or uint16 [num_pictures, height, width, channels].

    Returns:
        float64 [num_pictures], 0..1.
    """
    sides = (
        pictures[:, 0],
        pictures[:, -1],
        pictures[:, 1:-1, 0],
        pictures[:, 1:-1, -1],
    )
    ring = np.concatenate([side.reshape(len(pictures), -1) for side in sides], axis=1)
    return (ring >= _WHITE * _scale(pictures)).mean(axis=1)


def _scale(pictures: np.ndarray) -> int:
    """Returns what stands for one of 255 levels: 1 in uint8, 257 in uint16."""
    return int(np.iinfo(pictures.dtype).max) // 255
