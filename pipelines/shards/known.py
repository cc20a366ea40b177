"""What a worker asks a store of images that were decoded before, if a build has one."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, Protocol

import pyarrow as pa

from tfrecord_io.decoding.options import Preprocessing
from tfrecord_io.decoding.preprocess import DecodedImage
from tfrecord_io.format.manifest import Manifest
from tfrecord_io.stores.folder import Folder


class KnownImage(NamedTuple):
    """An image as if it had been decoded, and the side facts of its pixels, by their names."""

    image: DecodedImage
    side_facts: Mapping[str, Any]


class KnownImages(Protocol):
    """The images of a store, open in a worker."""

    @property
    def num_parallel_reads(self) -> int:
        """Number of threads that should call `find`, more than one for a store on a network."""
        ...

    def find(self, data: bytes, frame: int | None) -> KnownImage | None:
        """Returns the image of a file's bytes, or None if it must be decoded."""
        ...

    def noted(self, rows: pa.Table, num_copied: int) -> pa.Table:
        """Returns the rows of a shard, with what was copied in the metadata of their schema."""
        ...


class ImageStore(Protocol):
    """A store of images, as it is sent to the workers."""

    def fitting(self, draft: Manifest, output: Folder) -> ImageStore | None:
        """Writes what workers need into the output of a build; None if no image can be used."""
        ...

    def open(self, output: Folder, pixels: Preprocessing) -> AbstractContextManager[KnownImages]:
        """Opens the store in a worker that writes to `output`."""
        ...
