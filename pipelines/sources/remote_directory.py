"""A folder of images on an object store: SPLIT/CLASS/files or CLASS/files."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pipelines import errors
from pipelines.sources.listing import ImageRef, Listing, ListingOptions, Member, list_images
from pipelines.stores import remote


@dataclasses.dataclass(frozen=True)
class RemoteDirectorySource:
    """Images in a folder on any file system that Beam knows.

    Attributes:
        url: of the folder.
        kind: what the manifest calls the source.
    """

    url: str
    kind: str = "directory"

    def prepare(self, scratch_dir: Path) -> RemoteDirectorySource:
        return self

    def list(self, options: ListingOptions) -> Listing:
        """Lists the images.

        Raises:
            errors.UserError: if there is no file, or none of them is an image.
        """
        store = remote.open_store(self.url)
        # An object whose name ends in a slash is a console's picture of a folder.
        found = [
            file for file in store.list(self.url, recursive=True) if not file.url.endswith("/")
        ]
        if not found:
            raise errors.UserError(f"--input {self.url} holds no file")
        found.sort(key=lambda file: file.url)
        with self.open() as reader:
            return list_images(
                (self._member(file) for file in found),
                options,
                lambda a, b: reader.read(a) == reader.read(b),
            )

    def _member(self, file: remote.RemoteFile) -> Member:
        name = file.url.removeprefix(f"{self.url.rstrip('/')}/")
        return Member(name, file.size, 0, file.size, file.mark)

    @contextlib.contextmanager
    def open(self) -> Iterator[_Reader]:
        yield _Reader(remote.open_store(self.url), self.url.rstrip("/"))

    def describe(self) -> dict[str, Any]:
        return {"kind": self.kind, "name": self.url.rstrip("/").rsplit("/", 1)[-1]}


@dataclasses.dataclass(frozen=True)
class _Reader:
    store: remote.Store
    url: str

    num_parallel_reads = remote.NUM_CONNECTIONS

    def read(self, ref: ImageRef) -> bytes:
        if not ref.size:
            return b""
        url = f"{self.url}/{ref.source_path}"
        try:
            # A byte more than it should have tells one that has grown, if its mark does not.
            data = self.store.read(url, 0, ref.size + 1, ref.version)
        except FileNotFoundError:
            raise errors.BuildError(
                f"{url} is gone since the build began; start again with --overwrite"
            ) from None
        if len(data) != ref.size:
            raise errors.BuildError(
                f"{url} changed since the build began (it had {ref.size:,} bytes); start again "
                "with --overwrite"
            )
        return data
