"""Local shards that are not in memory yet: the system is told which records come next.

Without that, a batch waits for one record after the other. A disk that knows of many reads, in the
order of their places, gives several times as many a second.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np

from tfrecord_io.manifest import Manifest

# Records that are announced ahead, and those that are told in the order of their places: the first
# batch waits for these only.
_WINDOW = 512
_GROUP = 64

# Records of which the system is asked whether it has them in memory.
_NUM_PROBES = 8


class ColdShards:
    """Announces records of the shards of a split to the system, if they are not in memory."""

    def __init__(self, paths: Sequence[Path], shard_sizes: Sequence[int], stride: int) -> None:
        """Takes the files, the number of examples in each, and the bytes of a record."""
        self._paths, self._stride = paths, stride
        self._ends = np.cumsum(np.array(shard_sizes, np.int64))

    @classmethod
    def of(
        cls, folder: str | os.PathLike[str], manifest: Manifest, split: str | Sequence[str]
    ) -> ColdShards:
        """Returns the shards of a split, or of several that follow each other."""
        shards = manifest.split(split).shards
        paths = [Path(os.fspath(folder)) / shard.name for shard in shards]
        return cls(paths, [shard.num_examples for shard in shards], manifest.layout.stride)

    def announced(self, batches: Iterable[np.ndarray]) -> Iterator[np.ndarray]:
        """Yields batches, whose records are announced some hundred records earlier."""
        waiting: list[np.ndarray] = []
        following: list[np.ndarray] = []
        for batch in batches:
            following.append(batch)
            if sum(map(len, following)) >= _WINDOW:
                self.announce(np.concatenate(following))
                yield from waiting
                waiting = following
                following = []
        if following:
            self.announce(np.concatenate(following))
        yield from waiting
        yield from following

    def announce(self, examples: np.ndarray) -> None:
        """Tells the system which records will be read, without waiting for them.

        Args:
            examples: int64 [examples], places in the split, in the order in which they are read.
        """
        if not hasattr(os, "RWF_NOWAIT"):  # only Linux says what it has in memory
            return
        probes = examples[:: max(1, len(examples) // _NUM_PROBES)]
        if not all(self._is_in_memory(example) for example in probes.tolist()):
            threading.Thread(
                target=self._announce, args=(examples,), name="announce", daemon=True
            ).start()

    def _is_in_memory(self, example: int) -> bool:
        with contextlib.suppress(OSError), self._opened(example) as (file, shard_start):
            start = (example - shard_start) * self._stride
            return os.preadv(file, [bytearray(1)], start, os.RWF_NOWAIT) == 1
        return False  # or the file system cannot tell

    def _announce(self, examples: np.ndarray) -> None:
        for first in range(0, len(examples), _GROUP):
            group = np.sort(examples[first : first + _GROUP])
            shards = np.searchsorted(self._ends, group, side="right")
            for run in np.split(group, np.flatnonzero(np.diff(shards)) + 1):
                # Whoever reads a file that cannot be opened will say so.
                with contextlib.suppress(OSError), self._opened(run[0]) as (file, shard_start):
                    for start in ((run - shard_start) * self._stride).tolist():
                        os.posix_fadvise(file, start, self._stride, os.POSIX_FADV_WILLNEED)

    @contextlib.contextmanager
    def _opened(self, example: int) -> Iterator[tuple[int, int]]:
        """Opens the shard of an example; yields the file and the shard's first example."""
        shard = int(np.searchsorted(self._ends, example, side="right"))
        file = os.open(self._paths[shard], os.O_RDONLY)
        try:
            yield file, int(self._ends[shard - 1]) if shard else 0
        finally:
            os.close(file)
