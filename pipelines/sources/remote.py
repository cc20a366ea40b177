"""Images in zips and folders on object stores, and in zips on web servers.

A zip is never downloaded as a whole: exact ranges are read of its directory and its members.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from pipelines import errors
from pipelines.sources.archive import ArchiveReader, zip_members
from pipelines.sources.source import Member, Reader, Source
from tfrecord_io.decoding.rejects import Reject
from tfrecord_io.stores import archives, remote
from tfrecord_io.terminal.address import Address

# The tags of most files are in one request of this length.
_BUFFER_BYTES = 64 * 1024
_NOT_PREPARED = remote.RemoteFile("", 0, "")


@dataclasses.dataclass(frozen=True)
class RemoteZipSource(Source):
    """Images in a .zip file on an object store or a web server.

    Attributes:
        url: address of the archive.
        facts: other entries of `describe`, as in `ArchiveSource`.
        file: the archive's size and version, once prepared; no other version is read.
    """

    url: Address
    facts: Mapping[str, str] = dataclasses.field(default_factory=dict)
    file: remote.RemoteFile = _NOT_PREPARED

    def prepare(self, scratch_dir: Path) -> RemoteZipSource:
        try:
            return dataclasses.replace(self, file=remote.describe(self.url))
        except FileNotFoundError:
            raise errors.UserError(f"--input {self.url} is not a file") from None

    def members(self) -> Iterator[Member]:
        with self.file.open() as file:
            if file.read(4) not in archives.SIGNATURES:
                raise errors.UserError(
                    f"{self.url} is not a zip; only a zip has an index and can be read from a "
                    "store without downloading all of it. Copy the file to a local disk, or give a "
                    ".zip"
                )
            yield from zip_members(file, self.url)

    @contextlib.contextmanager
    def open(self) -> Iterator[ArchiveReader]:
        reader = ArchiveReader(self.file.read, self.file.size, is_zip=True)
        reader.num_parallel_reads = remote.NUM_CONNECTIONS
        yield reader

    def describe(self) -> dict[str, Any]:
        return {"kind": "archive", "name": self.url.rsplit("/", 1)[-1], **self.facts}


@dataclasses.dataclass(frozen=True)
class RemoteDirectorySource(Source):
    """Images in a folder on an object store: SPLIT/CLASS/files or CLASS/files."""

    url: Address

    def members(self) -> Iterator[Member]:
        files = remote.list_files(self.url, recursive=True)
        if not files:
            raise errors.UserError(f"--input {self.url} holds no files")
        for file in sorted(files, key=lambda file: file.url):
            name = file.url.removeprefix(f"{self.url.rstrip('/')}/")
            yield Member(name, file.size, 0, file.size, file.version)

    def same_content(self, one: Member, other: Member) -> bool:
        with self.open() as reader:
            return reader.read(one) == reader.read(other)

    @contextlib.contextmanager
    def open(self) -> Iterator[_DirectoryReader]:
        yield _DirectoryReader(self.url.rstrip("/"))

    def describe(self) -> dict[str, Any]:
        return {"kind": "directory", "name": self.url.rstrip("/").rsplit("/", 1)[-1]}


@dataclasses.dataclass(frozen=True)
class _DirectoryReader(Reader):
    url: str

    num_parallel_reads = remote.NUM_CONNECTIONS

    def open(self, member: Member) -> BinaryIO:
        with contextlib.suppress(FileNotFoundError):
            file = remote.describe(f"{self.url}/{member.name}")
            if (file.size, file.version) == (member.size, member.version):
                return io.BufferedReader(file.open(), _BUFFER_BYTES)
        return super().open(member)  # which reports what has changed

    def read(self, member: Member) -> bytes:
        if not member.size:
            return b""
        url = f"{self.url}/{member.name}"
        try:
            return remote.read_file(url, member.size, member.version)
        except FileNotFoundError:
            # Without the slash at its end, a store lists the name and does not find it.
            if url in [file.url for file in remote.list_files(url, recursive=True)]:
                raise Reject(
                    "unreadable_name", "the store's name for it ends with /; rename it"
                ) from None
            raise errors.changed(url, "was removed") from None
