"""Writes the records of a shard, and finds what is known of them all.

An image decoded between two steps leaves nothing of their code and data in a processor's caches:
hashing, writing and looking at each record by itself costs several times what it costs for many.
So records are encoded side by side into one block of memory, and the rest is done to the block.
"""

from __future__ import annotations

import hashlib
from typing import IO

import numpy as np

from tfrecord_io import schema
from tfrecord_io.auditing import side_facts
from tfrecord_io.statistics import PixelStatistics

#: Bytes of records that are dealt with together, few enough to stay in a processor's cache.
BLOCK_BYTES = 1024 * 1024


class ShardWriter:
    """Appends records to a file. Use it as a context, which ends with the last block written."""

    def __init__(self, file: IO[bytes], layout: schema.RecordLayout) -> None:
        """Begins with no records.

        Args:
            file: open for writing; stays open.
            layout: of the records.
        """
        self._file = file
        self._layout = layout
        num_records = max(BLOCK_BYTES // layout.stride, 1)
        self._block = np.empty((num_records, layout.stride), np.uint8)
        self._records = [record.data for record in self._block]
        slot = layout.features[schema.IMAGE]
        pixels = self._block[:, slot.offset : slot.offset + slot.length]
        self._pictures = pixels.reshape(num_records, *layout.image_shape)
        self._num_waiting = 0
        self._digest = hashlib.sha256()
        self._facts = side_facts.SideFacts()
        self._statistics = PixelStatistics.from_images(self._pictures[:0])

    def write(self, image: bytes, label_index: int, key: str) -> None:
        """Appends a record.

        Args and errors are those of `schema.RecordLayout.encode_record`.
        """
        self._layout.encode_into(self._records[self._num_waiting], image, label_index, key)
        self._num_waiting += 1
        if self._num_waiting == len(self._records):
            self._write_block()

    @property
    def sha256(self) -> str:
        """Hexadecimal digest of what is in the file: of all records, after the context."""
        return self._digest.hexdigest()

    def facts(self) -> dict[str, np.ndarray]:
        """Returns what `side_facts.SideFacts` found of all pictures, after the context."""
        return self._facts.columns()

    def statistics(self) -> PixelStatistics:
        """Returns the sums over the pixels of all pictures, after the context."""
        return self._statistics

    def __enter__(self) -> ShardWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self._write_block()

    def _write_block(self) -> None:
        if not self._num_waiting:
            return
        block = self._block[: self._num_waiting].data.cast("B")
        self._digest.update(block)
        self._file.write(block)
        self._facts.add(self._pictures[: self._num_waiting])
        self._statistics += PixelStatistics.from_images(self._pictures[: self._num_waiting])
        self._num_waiting = 0
