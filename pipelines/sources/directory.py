"""Images in a folder, on a disk or on an object store, as SPLIT/CLASS/files or CLASS/files."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import io
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

from pipelines import errors
from pipelines.sources.source import Member, Reader, Source
from tfrecord_io.stores import remote
from tfrecord_io.terminal.address import Address

# A link that leads nowhere, to itself, or through a file. Other errors are of the machine.
_BROKEN_LINK = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG})
# The tags of most files on a store are in one request of this length.
_BUFFER_BYTES = 64 * 1024


@dataclasses.dataclass(frozen=True)
class DirectorySource(Source):
    """Images in a folder on a disk that every worker can read.

    Attributes:
        directory: the folder.
        kind: for the manifest.
    """

    directory: Path
    kind: str = "directory"

    def members(self) -> Iterator[Member]:
        """Yields every file; a link to a folder or to nothing, and a device, have a problem."""

        def fail(error: OSError) -> NoReturn:
            raise error  # by default os.walk silently skips a folder that it cannot list

        with errors.clear_read_errors(str(self.directory)):
            for folder, folders, files in os.walk(self.directory, onerror=fail):
                prefix = os.path.relpath(folder, self.directory) + "/"
                prefix = prefix.removeprefix("./")
                folders.sort()
                for name in folders:
                    if os.path.islink(os.path.join(folder, name)):  # noqa: PTH114, PTH118 - hot loop
                        detail = (
                            "a link to a folder; copy the input with cp -rL, which follows links"
                        )
                        yield Member(prefix + name, 0, problem=("link", detail))
                for name in sorted(files):
                    yield _member(prefix + name, os.path.join(folder, name))  # noqa: PTH118

    @contextlib.contextmanager
    def open(self) -> Iterator[_DirectoryReader]:
        yield _DirectoryReader(self.directory)

    def describe(self) -> dict[str, Any]:
        return {"kind": self.kind, "name": self.directory.name}


def _member(name: str, path: str) -> Member:
    problem = None
    try:
        status = os.stat(path)  # noqa: PTH116 - ten million of them; follows links to files
    except OSError as error:
        if error.errno not in _BROKEN_LINK or not os.path.islink(path):  # noqa: PTH114
            raise
        return Member(name, 0, problem=("unreadable_member", f"a link: {error.strerror}"))
    if not stat.S_ISREG(status.st_mode):
        problem = "not_a_file", "a pipe, socket or device"
    return Member(name, status.st_size, 0, status.st_size, status.st_mtime_ns, problem)


@dataclasses.dataclass(frozen=True)
class _DirectoryReader(Reader):
    directory: Path

    def read(self, member: Member) -> bytes:
        return self.read_start(member, member.size)

    def read_start(self, member: Member, length: int) -> bytes:
        with self.open(member) as file, errors.clear_read_errors(file.name):
            data = file.read(length)
            _require_unchanged(file, member)
        return data

    def open(self, member: Member) -> BinaryIO:
        path = self.directory / member.name
        with errors.clear_read_errors(str(path)):
            file = path.open("rb")
        try:
            _require_unchanged(file, member)
        except errors.BuildError:
            file.close()
            raise
        return file


def _require_unchanged(file: BinaryIO, member: Member) -> None:
    now = os.fstat(file.fileno())
    if (now.st_size, now.st_mtime_ns) != (member.size, member.version):
        raise errors.changed(f"{file.name} ({member.size:,} bytes then, {now.st_size:,} now)")


@dataclasses.dataclass(frozen=True)
class RemoteDirectorySource(Source):
    """Images in a folder on an object store."""

    url: Address

    def members(self) -> Iterator[Member]:
        files = remote.list_files(self.url, recursive=True)
        if not files:
            raise errors.UserError(f"--input {self.url} holds no files")
        for file in sorted(files, key=lambda file: file.url):
            name = file.url.removeprefix(f"{self.url.rstrip('/')}/")
            yield Member(name, file.size, 0, file.size, file.version)

    @contextlib.contextmanager
    def open(self) -> Iterator[_RemoteReader]:
        yield _RemoteReader(self.url.rstrip("/"))

    def describe(self) -> dict[str, Any]:
        return {"kind": "directory", "name": self.url.rstrip("/").rsplit("/", 1)[-1]}


@dataclasses.dataclass(frozen=True)
class _RemoteReader(Reader):
    url: str

    num_parallel_reads = remote.NUM_CONNECTIONS

    def open(self, member: Member) -> BinaryIO:
        with contextlib.suppress(FileNotFoundError):
            file = remote.describe(f"{self.url}/{member.name}")
            if (file.size, file.version) == (member.size, member.version):
                return io.BufferedReader(file.open(), _BUFFER_BYTES)
        return super().open(member)  # which reports what has changed

    def read_start(self, member: Member, length: int) -> bytes:
        if length < member.size:
            # Another version than the listed one is noticed when the whole file is read.
            with contextlib.suppress(FileNotFoundError):
                return bytes(remote.read(f"{self.url}/{member.name}", 0, length))
        return self.read(member)

    def read(self, member: Member) -> bytes:
        url = f"{self.url}/{member.name}"
        try:
            return remote.read_version(url, member.size, member.version)[0]
        except FileNotFoundError:
            raise errors.changed(url, "was removed") from None
