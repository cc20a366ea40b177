"""Zips and folders of images on object stores; a zip on a web server, too.

Of a zip only the directory at its end and single members are fetched, by exact ranges.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pipelines import errors
from pipelines.sources import zip_members
from pipelines.sources.listing import ImageRef, Listing, ListingOptions, Member, list_images
from pipelines.stores import remote


@dataclasses.dataclass(frozen=True)
class RemoteZipSource:
    """Images in a .zip file on an object store or a web server.

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
            found = remote.describe(self.url)
        except FileNotFoundError:
            raise errors.UserError(f"--input {remote.shown(self.url)} is no file") from None
        return dataclasses.replace(self, size=found.size, mark=found.mark)

    def list(self, options: ListingOptions) -> Listing:
        """Lists the images; refuses anything but a zip.

        Raises:
            errors.UserError: if it is no zip, or holds no image.
        """
        shown = remote.shown(self.url)
        start = remote.read(self.url, 0, 4, self.mark)
        if start not in zip_members.SIGNATURES:
            what = "a gzip file" if start[:2] == b"\x1f\x8b" else "no zip"
            raise errors.UserError(
                f"{shown} is {what}; only a zip has an index, so that it can be read from a "
                "store without fetching all of it. Copy the file to a local disk, or give a .zip"
            )
        archive = remote.RemoteFile(self.url, self.size, self.mark)
        with remote.RangeFile(archive) as file:
            members = zip_members.list_members(file, self.size, shown)
            return list_images(members, options, lambda a, b: a.version == b.version)

    @contextlib.contextmanager
    def open(self) -> Iterator[_ZipReader]:
        yield _ZipReader(self)

    def describe(self) -> dict[str, Any]:
        facts = {"kind": self.kind, "name": remote.shown(self.url).rsplit("/", 1)[-1]}
        return facts | ({"dataset": self.dataset} if self.dataset else {})


@dataclasses.dataclass(frozen=True)
class _ZipReader:
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
            return remote.read(self.source.url, start, length, self.source.mark)
        except FileNotFoundError:
            raise _gone(self.source.url) from None


@dataclasses.dataclass(frozen=True)
class RemoteDirectorySource:
    """Images in a folder on an object store: SPLIT/CLASS/files or CLASS/files.

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
        found = remote.list_files(self.url, recursive=True)
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
        return Member(name, file.size, 0, file.size, file.version)

    @contextlib.contextmanager
    def open(self) -> Iterator[_DirectoryReader]:
        yield _DirectoryReader(self.url.rstrip("/"))

    def describe(self) -> dict[str, Any]:
        return {"kind": self.kind, "name": self.url.rstrip("/").rsplit("/", 1)[-1]}


@dataclasses.dataclass(frozen=True)
class _DirectoryReader:
    url: str

    num_parallel_reads = remote.NUM_CONNECTIONS

    def read(self, ref: ImageRef) -> bytes:
        if not ref.size:
            return b""
        url = f"{self.url}/{ref.source_path}"
        try:
            return remote.read_file(url, ref.size, ref.version)
        except FileNotFoundError:
            raise _gone(url) from None


def _gone(url: str) -> errors.BuildError:
    return errors.BuildError(
        f"{remote.shown(url)} is gone since the build began; start again with --overwrite"
    )
