"""Local shards that are not in memory yet: the system is told which records come next.

Without that, a batch waits for one record after the other. A disk that knows of many reads, in the
order of their places, gives several times as many a second.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from tfrecord_io.files import announce
from tfrecord_io.reading.records import Rows

# Records that are told in the order of their places: the first batch waits for these only.
_GROUP = 64

# Records of which the system is asked whether it has them in memory.
_NUM_PROBES = 8


class ColdShards:
    """Announces records of the shards of a split to the system, if they are not in memory."""

    def __init__(self, paths: Sequence[Path], rows: Rows, stride: int) -> None:
        """Takes the files, the rows of their records, and the bytes of a record."""
        self._paths, self._rows, self._stride = paths, rows, stride

    def announce(self, rows: np.ndarray) -> None:
        """Tells the system of records that will be read in this order, int64; does not wait."""
        if not hasattr(os, "RWF_NOWAIT"):  # only Linux says what it has in memory
            return
        probes = rows[:: max(1, len(rows) // _NUM_PROBES)]
        if not all(self._is_in_memory(row) for row in probes.tolist()):
            threading.Thread(
                target=self._announce, args=(rows,), name="announce", daemon=True
            ).start()

    def _is_in_memory(self, row: int) -> bool:
        with contextlib.suppress(OSError), self._opened(row) as (file, place):
            start = place * self._stride
            return os.preadv(file, [bytearray(1)], start, os.RWF_NOWAIT) == 1
        return False  # or the file system cannot tell

    def _announce(self, rows: np.ndarray) -> None:
        for first in range(0, len(rows), _GROUP):
            group = np.sort(rows[first : first + _GROUP])
            breaks = np.flatnonzero(np.diff(self._rows.shards(group))) + 1
            for run in np.split(group, breaks):
                # Whoever reads a file that cannot be opened will say so.
                with contextlib.suppress(OSError), self._opened(int(run[0])) as (file, place):
                    for start in ((run - run[0] + place) * self._stride).tolist():
                        announce(file, start, self._stride)

    @contextlib.contextmanager
    def _opened(self, row: int) -> Iterator[tuple[int, int]]:
        """Opens the shard of a row; yields the file and the row's place there."""
        shard, place = self._rows.find(row)
        file = os.open(self._paths[shard], os.O_RDONLY)
        try:
            yield file, place
        finally:
            os.close(file)
