"""Rows: where the examples of a split lie in one array of records, and in which shard.

A reader turns the places of examples into rows once. After that it knows rows only, whether the
array is made of mapped shards, of a cache, or exists nowhere as a whole.
"""

from __future__ import annotations

import itertools
import math
import mmap
from collections.abc import Sequence

import numpy as np


class Rows:
    """Finds the row of an example, and the shard of a row.

    >>> rows = Rows([2, 3], [100, 200])
    >>> rows(np.array([0, 1, 2, 4])).tolist()
    [100, 101, 200, 202]
    >>> rows.find(202)
    (1, 2)

    Attributes:
        firsts: int64 [shards], row of each shard's first record.
    """

    def __init__(self, shard_sizes: Sequence[int], firsts: Sequence[int] | None = None) -> None:
        """Takes the examples of each shard, and its first row; None if no row lies between."""
        self._ends = np.cumsum(np.array(shard_sizes, np.int64))
        starts = self._ends - shard_sizes
        self.firsts = starts if firsts is None else np.array(firsts, np.int64)
        self._shifts = self.firsts - starts

    def __call__(self, examples: np.ndarray) -> np.ndarray:
        """Returns int64 [...], as `examples`: places in the split, shard after shard."""
        return examples + self._shifts[np.searchsorted(self._ends, examples, side="right")]

    def shards(self, rows: np.ndarray) -> np.ndarray:
        """Returns int64 [...], as `rows`: the shard of each; the first rows must ascend."""
        return np.searchsorted(self.firsts, rows, side="right") - 1

    def find(self, row: int) -> tuple[int, int]:
        """Returns the shard of a row, and its place there; the first rows must ascend."""
        shard = int(self.shards(np.array(row)))
        return shard, row - int(self.firsts[shard])


def lay_out(shard_sizes: Sequence[int], stride: int) -> list[int]:
    """Returns the first row of each shard in one range of memory, and the number of all rows.

    Each shard begins at a page of memory and at a multiple of the stride, in bytes.
    """
    # Every `period` rows a row begins where a page does.
    period = mmap.PAGESIZE // math.gcd(mmap.PAGESIZE, stride)
    taken = [max(1, -(-size // period)) * period for size in shard_sizes]
    return list(itertools.accumulate(taken, initial=0))
