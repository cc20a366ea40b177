"""Mean and standard deviation of stored pixels, kept as exact sums of integers.

Integers give the same sum in any order, however the work is divided.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

# Rows of pixels added up at once: the sum of this many squares, at most 255² each, fits into 32
# bits, and the rows of a scan fit into the processor's cache.
_ROWS_AT_ONCE = 256


@dataclasses.dataclass(frozen=True, kw_only=True)
class PixelStatistics:
    """Sums over the pixels of images, by channel.

    Attributes:
        num_pixels: number of pixels of each channel.
        sums: sum of the values of each channel.
        sums_of_squares: sum of the squared values of each channel.
    """

    num_pixels: int
    sums: tuple[int, ...]
    sums_of_squares: tuple[int, ...]

    @property
    def mean(self) -> tuple[float, ...]:
        """Mean of each channel, 0..255; a ZeroDivisionError if there are no pixels."""
        return tuple(total / self.num_pixels for total in self.sums)

    @property
    def std(self) -> tuple[float, ...]:
        """Standard deviation of each channel over all pixels, 0..127.5; as for `mean`."""
        # In integers, because the difference of the two large products may be small.
        return tuple(
            math.sqrt(self.num_pixels * squares - total**2) / self.num_pixels
            for total, squares in zip(self.sums, self.sums_of_squares, strict=True)
        )

    def __add__(self, other: PixelStatistics) -> PixelStatistics:
        """Returns the statistics of the pixels of both; a ValueError if their channels differ."""
        pairs = zip(self.sums, other.sums, strict=True)
        squares = zip(self.sums_of_squares, other.sums_of_squares, strict=True)
        return PixelStatistics(
            num_pixels=self.num_pixels + other.num_pixels,
            sums=tuple(map(sum, pairs)),
            sums_of_squares=tuple(map(sum, squares)),
        )

    @classmethod
    def from_images(cls, images: np.ndarray) -> PixelStatistics:
        """Adds up the pixels of images.

        Args:
            images: uint8 [num_images, height, width, channels]; num_images may be 0.
        """
        num_images, height, width, channels = images.shape
        sums = np.zeros((2, width * channels), np.uint64)
        all_rows = images.reshape(-1, width * channels)
        for row in range(0, len(all_rows), _ROWS_AT_ONCE):
            rows = all_rows[row : row + _ROWS_AT_ONCE]
            sums[0] += rows.sum(axis=0, dtype=np.uint32)
            # Twice as fast as a histogram with `np.bincount`.
            squares = np.multiply(rows, rows, dtype=np.uint16)
            sums[1] += squares.sum(axis=0, dtype=np.uint32)
        of_channels, of_squares = sums.reshape(2, width, channels).sum(axis=1).tolist()
        return cls(
            num_pixels=num_images * height * width,
            sums=tuple(of_channels),
            sums_of_squares=tuple(of_squares),
        )

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> PixelStatistics:
        """Makes statistics from the values of `dataclasses.asdict`; ignores other keys."""
        sums = {name: tuple(values[name]) for name in ("sums", "sums_of_squares")}
        return cls(num_pixels=values["num_pixels"], **sums)
