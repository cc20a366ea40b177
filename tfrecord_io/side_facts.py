"""What is known of a stored picture beside its label, found for many pictures at a time.

An image decoded between two of NumPy's calls leaves nothing of their code and data in the
processor's caches: for each image by itself these facts cost five times what they cost together.
"""

from __future__ import annotations

import math

import numpy as np

from tfrecord_io import near_duplicates

# JPEG leaves a white area a little below 255.
_WHITE = 250

# Pixels that wait to be looked at: few enough to stay in a processor's cache.
_WAITING_BYTES = 1024 * 1024


class SideFacts:
    """Collects the facts of pictures of one size, in the order in which they are added."""

    def __init__(self, image_shape: tuple[int, int, int]) -> None:
        """Begins with no pictures.

        Args:
            image_shape: (height, width, channels) of each.
        """
        num_waiting = max(_WAITING_BYTES // math.prod(image_shape), 1)
        # One place for them all, again and again: pictures that were kept themselves would have
        # each next one decoded into memory that no cache knows.
        self._pictures = np.empty((num_waiting, *image_shape), np.uint8)
        self._places = self._pictures.reshape(num_waiting, -1)
        self._num_waiting = 0
        self._thumbnails = [np.empty((0, *near_duplicates.THUMBNAIL_SHAPE), np.uint8)]
        self._white_borders = [np.empty(0)]

    def add(self, pixels: bytes) -> None:
        """Adds a picture: uint8, row-major [height, width, channels]."""
        self._places[self._num_waiting] = np.frombuffer(pixels, np.uint8)
        self._num_waiting += 1
        if self._num_waiting == len(self._places):
            self._look()

    def columns(self) -> dict[str, np.ndarray]:
        """Returns the facts of all pictures.

        Returns:
            `brightness`: float64 [pictures], mean of the picture in grey, 0..255;
            `white_border`: float64 [pictures], see `white_border`;
            `perceptual_hash`: uint8 [pictures, 32], see `near_duplicates.perceptual_hash`.
        """
        self._look()
        thumbnails = np.concatenate(self._thumbnails)
        return {
            "brightness": thumbnails.mean(axis=(1, 2)),
            "white_border": np.concatenate(self._white_borders),
            "perceptual_hash": near_duplicates.perceptual_hash(thumbnails),
        }

    def _look(self) -> None:
        if not self._num_waiting:
            return
        pictures = self._pictures[: self._num_waiting]
        self._thumbnails.append(near_duplicates.thumbnails(pictures))
        self._white_borders.append(white_border(pictures))
        self._num_waiting = 0


def white_border(pictures: np.ndarray) -> np.ndarray:
    """Returns the share of the outermost ring that is white: scans are padded with it.

    Args:
        pictures: uint8 [pictures, height, width, channels].

    Returns:
        float64 [pictures], 0..1.
    """
    sides = (
        pictures[:, 0],
        pictures[:, -1],
        pictures[:, 1:-1, 0],
        pictures[:, 1:-1, -1],
    )
    ring = np.concatenate([side.reshape(len(pictures), -1) for side in sides], axis=1)
    return (ring >= _WHITE).mean(axis=1)
