"""Images in a folder, on a disk or on an object store, as SPLIT/CLASS/files or CLASS/files."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import filecmp
import io
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from pipelines import errors
from pipelines.sources.source import NOT_PERMITTED, Member, Reader, Source
from tfrecord_io.stores import remote
from tfrecord_io.terminal.address import Address

# A link that leads nowhere, to itself, or through a file.
_BROKEN_LINK = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG})
_NOT_PERMITTED = frozenset({errno.EACCES, errno.EPERM})
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
        """Yields every file; a link to a folder has a problem."""
        # By default os.walk silently skips a folder that it cannot list, and so its images.
        failed: list[OSError] = []
        for folder, folders, files in os.walk(self.directory, onerror=failed.append):
            prefix = Path(folder).relative_to(self.directory).as_posix()
            prefix = "" if prefix == "." else f"{prefix}/"
            folders.sort()
            for name in folders:
                if os.path.islink(os.path.join(folder, name)):  # noqa: PTH114, PTH118 - hot loop
                    detail = "a link to a folder; copy the input with cp -rL, which follows links"
                    yield Member(prefix + name, 0, problem=("link", detail))
            for name in sorted(files):
                yield _member(prefix + name, os.path.join(folder, name))  # noqa: PTH118
        for error in failed:
            if error.errno not in _NOT_PERMITTED:
                with errors.clear_read_errors(error.filename):
                    raise error
            name = Path(error.filename).relative_to(self.directory).as_posix()
            yield Member(name, 0, problem=(NOT_PERMITTED, "permission denied"))

    def same_content(self, one: Member, other: Member) -> bool:
        paths = self.directory / one.name, self.directory / other.name
        with errors.clear_read_errors(" or ".join(map(str, paths))):
            return filecmp.cmp(*paths, shallow=False)

    @contextlib.contextmanager
    def open(self) -> Iterator[_DirectoryReader]:
        yield _DirectoryReader(self.directory)

    def describe(self) -> dict[str, Any]:
        return {"kind": self.kind, "name": self.directory.name}


@dataclasses.dataclass(frozen=True)
class _DirectoryReader(Reader):
    directory: Path

    def read(self, member: Member) -> bytes:
        return self.read_start(member, member.size)

    def read_start(self, member: Member, length: int) -> bytes:
        path = self.directory / member.name
        with self._clear_errors(path), path.open("rb") as file:
            data = file.read(length)
            _require_unchanged(file, path, member)
        return data

    def open(self, member: Member) -> BinaryIO:
        path = self.directory / member.name
        with self._clear_errors(path), contextlib.ExitStack() as stack:
            file = stack.enter_context(path.open("rb"))
            _require_unchanged(file, path, member)
            stack.pop_all()
            return file

    @contextlib.contextmanager
    def _clear_errors(self, path: Path) -> Iterator[None]:
        try:
            with errors.clear_read_errors(str(path)):
                yield
        except errors.BuildError:
            if not self.directory.is_dir():
                raise errors.BuildError(
                    f"{self.directory} is not on this worker; every worker must be able to read it"
                ) from None
            if not os.path.lexists(path):
                raise errors.changed(str(path), "was removed") from None
            raise


def _require_unchanged(file: BinaryIO, path: Path, member: Member) -> None:
    now = os.fstat(file.fileno())
    if (now.st_size, now.st_mtime_ns) != (member.size, member.version):
        raise errors.changed(f"{path} ({member.size:,} bytes then, {now.st_size:,} now)")


def _member(name: str, path: str) -> Member:
    try:
        status = os.stat(path)  # noqa: PTH116 - ten million of them; follows links to files
    except OSError as error:
        if error.errno in _BROKEN_LINK:
            return Member(name, 0, problem=("unreadable_member", f"a link: {error.strerror}"))
        if error.errno in _NOT_PERMITTED:
            return Member(name, 0, problem=(NOT_PERMITTED, "permission denied"))
        with errors.clear_read_errors(path):
            raise
    if not stat.S_ISREG(status.st_mode):
        return Member(name, 0, problem=("not_a_file", "a pipe, socket or device"))
    # Most files are readable for everybody, which needs no further call.
    if status.st_mode & 0o444 != 0o444 and not os.access(path, os.R_OK):
        return Member(name, 0, problem=(NOT_PERMITTED, "permission denied"))
    return Member(name, status.st_size, 0, status.st_size, status.st_mtime_ns)


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

    def same_content(self, one: Member, other: Member) -> bool:
        with self.open() as reader:
            return reader.read(one) == reader.read(other)

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
        if not member.size:
            return b""
        url = f"{self.url}/{member.name}"
        try:
            return remote.read_file(url, member.size, member.version)
        except FileNotFoundError:
            raise errors.changed(url, "was removed") from None
