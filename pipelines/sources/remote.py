"""A zip on an object store, read by ranges: the directory at its end once, then single members."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pipelines import errors
from pipelines.sources import zip_members
from pipelines.sources.listing import ImageRef, Listing, ListingOptions, list_images
from pipelines.stores import remote


@dataclasses.dataclass(frozen=True)
class RemoteZipSource:
    """Images in a .zip file on any file system that Beam knows.

    Attributes:
        url: of the archive.
        kind: what the manifest calls the source.
        dataset: OWNER/NAME, if it came from Kaggle.
        size: bytes of the archive.
        mark: what the store calls this version of it, so that no other is read for it.
    """

    url: str
    kind: str = "archive"
    dataset: str | None = None
    size: int = 0
    mark: str = ""

    def prepare(self, scratch_dir: Path) -> RemoteZipSource:
        """Looks the archive up.

        Raises:
            errors.UserError: if it is not there.
        """
        try:
            size, mark = remote.open_store(self.url).describe(self.url)
        except FileNotFoundError:
            raise errors.UserError(f"--input {self.url} is no file") from None
        return dataclasses.replace(self, size=size, mark=mark)

    def list(self, options: ListingOptions) -> Listing:
        """Lists the images; refuses anything but a zip.

        Raises:
            errors.UserError: if it is no zip, or holds no image.
        """
        store = remote.open_store(self.url)
        if (start := store.read(self.url, 0, 4, self.mark)) not in zip_members.SIGNATURES:
            what = "a gzip file" if start[:2] == b"\x1f\x8b" else "no zip"
            raise errors.UserError(
                f"{self.url} is {what}; only a zip has an index, so that it can be read from a "
                "store without fetching all of it. Copy the file to a local disk, or give a .zip"
            )
        with remote.RangeFile(store, self.url, self.size, self.mark) as file:
            members = zip_members.list_members(file, self.size, self.url)
            return list_images(members, options, lambda a, b: a.version == b.version)

    @contextlib.contextmanager
    def open(self) -> Iterator[_Reader]:
        yield _Reader(remote.open_store(self.url), self)

    def describe(self) -> dict[str, Any]:
        facts = {"kind": self.kind, "name": self.url.rsplit("/", 1)[-1]}
        return facts | ({"dataset": self.dataset} if self.dataset else {})


@dataclasses.dataclass(frozen=True)
class _Reader:
    store: remote.Store
    source: RemoteZipSource

    num_parallel_reads = remote.NUM_CONNECTIONS

    def read(self, ref: ImageRef) -> bytes:
        return zip_members.read_member(self._read_at, ref)

    def _read_at(self, start: int, length: int) -> bytes:
        # Beyond the end some stores give an error instead of what is left.
        length = min(length, self.source.size - start)
        if length <= 0:
            return b""
        try:
            return self.store.read(self.source.url, start, length, self.source.mark)
        except FileNotFoundError:
            raise errors.BuildError(f"{self.source.url} is gone since the build began") from None
