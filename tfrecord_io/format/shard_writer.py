"""Writes the records of a shard, and computes the side facts of their pictures.

Blocks of records are hashed, written and counted together. Record by record that takes several
times longer: decoding an image in between evicts the code from the processor's caches.
"""

from __future__ import annotations

import hashlib
from typing import IO

import numpy as np

from tfrecord_io.format import schema
from tfrecord_io.format.side_facts import side_facts
from tfrecord_io.format.statistics import PixelStatistics

#: Size of a block in bytes, small enough for a processor's cache.
BLOCK_BYTES = 1024 * 1024


class ShardWriter:
    """Appends records to a file, for use in a `with` block, whose end writes the last records.

    Attributes:
        statistics: sums over the pixels of the written blocks.
    """

    def __init__(self, file: IO[bytes], layout: schema.RecordLayout) -> None:
        """Makes a writer without records; the file is open for writing and stays open."""
        self._file = file
        self._layout = layout
        num_records = max(BLOCK_BYTES // layout.stride, 1)
        self._block = np.empty((num_records, layout.stride), np.uint8)
        images = layout.bytes_in(self._block, schema.IMAGE)
        self._pictures = images.reshape(num_records, *layout.image_shape)  # a view
        self._num_waiting = 0
        self._boxes: list[tuple[int, int, int, int] | None] = []
        self._digest = hashlib.sha256()
        # Those of no pictures first, because a shard may have none.
        self._facts = [side_facts(np.empty((0, 32, 32, 1), np.uint8))]
        self.statistics = PixelStatistics.from_images(self._pictures[:0])

    def write(
        self,
        image: bytes,
        label: np.ndarray,
        key: str,
        box: tuple[int, int, int, int] | None = None,
    ) -> None:
        """Appends a record; see `schema.RecordLayout.encode_record` for arguments and errors.

        The box is where the picture is in a padded image.
        """
        record = self._layout.encode_record(image, label, key)
        self._block[self._num_waiting] = np.frombuffer(record, np.uint8)
        self._boxes.append(box)
        self._num_waiting += 1
        if self._num_waiting == len(self._block):
            self._write_block()

    @property
    def sha256(self) -> str:
        """Hexadecimal digest of the written blocks; of all records after the `with` block."""
        return self._digest.hexdigest()

    def facts(self) -> dict[str, np.ndarray]:
        """Returns what `side_facts` does, of all pictures, after the `with` block."""
        names = self._facts[0]
        return {name: np.concatenate([facts[name] for facts in self._facts]) for name in names}

    def __enter__(self) -> ShardWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None and self._num_waiting:
            self._write_block()

    def _write_block(self) -> None:
        block = self._block[: self._num_waiting].data.cast("B")
        self._digest.update(block)
        self._file.write(block)
        pictures = self._pictures[: self._num_waiting]
        self._facts.append(side_facts(pictures, self._boxes))
        self.statistics += PixelStatistics.from_images(pictures)
        self._boxes.clear()
        self._num_waiting = 0
