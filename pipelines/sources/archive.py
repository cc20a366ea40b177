"""Images in a zip or tar on a disk, or in a zip on a store; each is read in place.

The launcher lists the members once, and a worker reads each at the offset that was found: opening a
zip of 170,000 members would take a second and a hundred megabytes in each worker. A tar has no
checksums, so the launcher computes the CRC-32 of each member, as a zip has.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import mmap
import os
import shlex
import stat
import tarfile
import threading
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any, BinaryIO

import deflate

from pipelines import errors
from pipelines.sources.packing import gunzipped, version_of
from pipelines.sources.source import MAX_FILE_BYTES, Member, Reader, Source
from tfrecord_io.decoding.rejects import Reject
from tfrecord_io.decoding.unread import START_BYTES, what_is
from tfrecord_io.stores import archives, remote
from tfrecord_io.stores.files import announce
from tfrecord_io.stores.range_file import RangeFile
from tfrecord_io.terminal.address import Address
from tfrecord_io.terminal.printing import counted

_COPY_BYTES = 4 * 1024 * 1024
_ENCRYPTED = 0x1
_GZIP = b"\x1f\x8b"


@dataclasses.dataclass(frozen=True)
class LocalFile:
    """An archive on a disk that every worker can read, as `remote.StoredFile` is one on a store.

    Attributes:
        path: the file.
        url: what the user gave: this file, or what was packed into it.
        version: its size in bytes, and the time of its last change in ns.
    """

    path: Path
    url: str
    version: tuple[int, int]

    def open(self) -> BinaryIO:
        with errors.clear_read_errors(f"{self.path} (every worker must be able to read it)"):
            return self.path.open("rb")


@dataclasses.dataclass(frozen=True)
class ArchiveSource(Source):
    """Images in a zip or tar, see `open_archive`. If the file changes, reading it is an error.

    Attributes:
        file: the archive.
        is_zip: whether it is a zip; else it is a tar.
        facts: its entry in the manifest.
    """

    file: LocalFile | remote.StoredFile
    is_zip: bool
    facts: Mapping[str, Any]

    def members(self) -> Iterator[Member]:
        with self.file.open() as file:
            yield from (zip_members if self.is_zip else _tar_members)(file, self.file.url)

    @contextlib.contextmanager
    def open(self) -> Iterator[ArchiveReader]:
        if isinstance(self.file, LocalFile):
            with self.file.open() as file:
                yield _LocalReader(file.fileno(), self.file, is_zip=self.is_zip)
        else:
            reader = ArchiveReader(self.file.read, self.file.size, is_zip=self.is_zip)
            reader.num_parallel_reads = remote.NUM_CONNECTIONS
            yield reader

    def describe(self) -> dict[str, Any]:
        return {**self.facts}


def open_archive(place: Path | Address, scratch_dir: Path, **facts: Any) -> ArchiveSource:
    """Returns the source of a local zip or tar, or of a zip on an object store or web server.

    A tar.gz is unpacked to a tar in the local folder `scratch_dir`, unless it is already there.
    A zip on a store is never downloaded as a whole: exact ranges are read of its directory and its
    members. `facts` are entries for the manifest.

    Raises:
        errors.UserError: if there is no such file, a file on a store is not a zip, or a tar.gz is
            damaged.
        errors.StoreError: if the store does not answer, or refuses.
    """
    if isinstance(place, Path):
        if not _start(place).startswith(_GZIP):
            return local_archive(place, place, **facts)
        tar, gzip_facts = gunzipped(place, scratch_dir)
        return local_archive(tar, place, gzip=gzip_facts, **facts)
    try:
        file = remote.describe(place)
    except FileNotFoundError:
        raise errors.UserError(f"--input {place} is not a file") from None
    with file.open() as opened:
        if opened.read(4) not in archives.SIGNATURES:
            raise errors.UserError(
                f"{place} is not a zip; only a zip has an index and can be read from a store "
                "without downloading all of it. Copy the file to a local disk, or give a .zip"
            )
    name = place.rsplit("/", 1)[-1]
    return ArchiveSource(file, True, {"kind": "archive", "name": name, **facts})


def local_archive(path: Path, given: Path, **facts: Any) -> ArchiveSource:
    """Returns the source of a zip or tar that is `given`, or was made of it; see `open_archive`."""
    file = LocalFile(path, str(given), version_of(path))
    return ArchiveSource(file, is_zip(path), {"kind": "archive", "name": given.name, **facts})


def is_zip(path: Path) -> bool:
    """Returns whether a file is a zip, by its name or its first bytes."""
    # `zipfile.is_zipfile` would take a tar for a zip if the tar's last member is a zip.
    return path.suffix.lower() == ".zip" or _start(path) in archives.SIGNATURES


class ArchiveReader(Reader):
    """Reads the members of a zip or tar of `size` bytes.

    `read_at` returns bytes of the archive itself, by a place and a length that exist.
    """

    def __init__(
        self, read_at: Callable[[int, int], bytes | memoryview], size: int, *, is_zip: bool
    ) -> None:
        self._read_existing = read_at
        self._size = size
        self._is_zip = is_zip
        self._checked: set[int] = set()
        self._locks: dict[int, threading.Lock] = {}

    def _read_at(self, start: int, length: int) -> memoryview:
        # Some stores refuse a range that ends beyond the file.
        length = min(length, self._size - start)
        return memoryview(self._read_existing(start, length) if length > 0 else b"")

    def require_unchanged(self) -> None:
        """Raises `errors.BuildError` if the archive is not what was listed."""

    def read(self, member: Member) -> bytes:
        """Returns a member's content, in one read unless its header is unusually long."""
        method, _, stored = self._read_stored(member, member.stored_size)
        if method == zipfile.ZIP_STORED:
            data = bytes(stored)
        elif method == zipfile.ZIP_DEFLATED:
            try:  # in no more memory than its declared size
                data = bytes(deflate.deflate_decompress(stored, member.size))
            except deflate.DeflateError:
                crc = deflate.crc32(stored)
                raise self._damaged(
                    f"its stored bytes, with the CRC-32 {crc:08x}, do not inflate to {member.size} "
                    "bytes"
                ) from None
        else:
            raise Reject("unreadable_member", f"compression method {method} is not supported")
        crc = deflate.crc32(data)
        if len(data) != member.size or crc != member.version:
            raise self._damaged(f"its CRC-32 is {crc:08x} instead of {member.version:08x}")
        return data

    def read_start(self, member: Member, length: int) -> bytes:
        """Returns the first bytes of a member, without checking them; fewer if it is damaged."""
        method, _, stored = self._read_stored(member, min(member.stored_size, length))
        if method != zipfile.ZIP_DEFLATED:
            return bytes(stored)
        with contextlib.suppress(zlib.error):
            return zlib.decompressobj(-zlib.MAX_WBITS).decompress(stored, length)
        return b""

    def open(self, member: Member) -> BinaryIO:
        """Opens a member; an uncompressed one is read as a whole once, to compare its checksum."""
        method, start, _ = self._read_stored(member, 0)
        if method != zipfile.ZIP_STORED:
            return super().open(member)
        with self._locks.setdefault(member.offset, threading.Lock()):
            if member.offset not in self._checked:
                self.read(member)
                self._checked.add(member.offset)
        return io.BufferedReader(RangeFile(self._read_at, member.size, member.offset + start))

    def _read_stored(self, member: Member, length: int) -> tuple[int, int, memoryview]:
        """Returns a member's compression method, and the start and first bytes of its content.

        The start counts from the member's offset, where a zip has a header and a tar the content.
        """
        if not self._is_zip:
            return zipfile.ZIP_STORED, 0, self._read_at(member.offset, length)
        # A guess at the length of the local header's variable part, so that one read is enough.
        guess = len(member.name.encode()) + 64
        header = archives.HEADER
        block = self._read_at(member.offset, header.size + guess + length)
        if len(block) < header.size or block[:4] != archives.HEADER_SIGNATURE:
            wrong = f"bytes with the CRC-32 {deflate.crc32(block):08x}"
            raise self._damaged(f"{wrong} are where its index says that it begins")
        method = int.from_bytes(block[8:10], "little")
        start = header.size + sum(header.unpack_from(block))
        stored = block[start : start + length]
        if len(stored) < length:
            stored = self._read_at(member.offset + start, length)
        return method, start, stored

    def _damaged(self, how: str) -> Reject:
        # The checksums in `how` show whether the same was read twice.
        self.require_unchanged()
        return Reject("unreadable_member", f"damaged in the archive: {how}")


class _LocalReader(ArchiveReader):
    """Reads an archive on a disk, which is open."""

    def __init__(self, descriptor: int, file: LocalFile, *, is_zip: bool) -> None:
        super().__init__(self._pread, file.version[0], is_zip=is_zip)
        self._descriptor = descriptor
        self._file = file

    def _pread(self, start: int, length: int) -> bytes:
        with errors.clear_read_errors(self._file.url):
            data = os.pread(self._descriptor, length, start)
        if len(data) != length:
            raise errors.changed(self._file.url)
        return data

    def require_unchanged(self) -> None:
        if version_of(self._descriptor) != self._file.version:
            raise errors.changed(self._file.url)

    def announce(self, member: Member) -> None:
        # An invalid offset is reported when the member is read.
        with contextlib.suppress(OSError, OverflowError):
            # A page more, because a zip has a header before the content: a page that is not
            # announced would be waited for behind all that are.
            announce(self._descriptor, member.offset, member.stored_size + mmap.PAGESIZE)


def zip_members(file: IO[bytes], shown: str) -> Iterator[Member]:
    """Yields every file of a zip, which an error calls `shown`; see `archives.open_zip`."""
    try:
        with errors.clear_read_errors(shown):
            infos = archives.open_zip(file).infolist()
    except (zipfile.BadZipFile, OSError, EOFError, ValueError, NotImplementedError) as error:
        raise _incomplete(f"{shown} is not a complete zip archive", error) from None
    if unknown := [info.filename for info in infos if archives.name_of(info) is None]:
        name = shown.rpartition("/")[2]
        raise errors.UserError(
            f"{shown} does not say how the names of {counted(len(unknown), 'member')} are encoded, "
            f"such as {unknown[0]!r}, and they are not UTF-8. Unpack it with the program that "
            "packed it, or in the encoding that makes the names right (cp437, cp850, cp1252, gbk, "
            f"shift_jis): python -m zipfile --metadata-encoding cp437 -e {shlex.quote(name)} "
            "FOLDER; then give the folder as --input"
        )
    for info in infos:
        # `ZipInfo.is_dir` fails on an empty name. A damaged name can end like a folder's.
        if info.file_size or not info.filename.endswith("/"):
            problem = None
            if info.flag_bits & _ENCRYPTED:
                problem = "encrypted", "the member is encrypted"
            # The upper half of the attributes is the file mode if the archive was made on Unix.
            elif stat.S_ISLNK(info.external_attr >> 16):
                problem = "link", "a symbolic link"
            place = info.header_offset, info.compress_size
            yield Member(info.filename, info.file_size, *place, info.CRC, problem)


def _tar_members(file: IO[bytes], shown: str) -> Iterator[Member]:
    try:
        with (
            errors.clear_read_errors(shown),
            tarfile.open(fileobj=file, mode="r:") as archive,
        ):
            for info in archive:
                if archive.offset <= info.offset:
                    raise tarfile.ReadError("a header points back to itself")
                if not info.isdir():
                    problem = _tar_problem(info)
                    # A file that is too large to be an image is not read.
                    is_read = problem is None and info.size <= MAX_FILE_BYTES
                    crc = _crc32(file, info.offset_data, info.size) if is_read else 0
                    yield Member(info.name, info.size, info.offset_data, info.size, crc, problem)
                # tarfile keeps every member in memory, and none is needed again.
                archive.members.clear()
            archives.check_tar_end(file, archive.offset)
    except (tarfile.TarError, EOFError, OSError, ValueError, OverflowError) as error:
        file.seek(0)
        start = file.read(START_BYTES)
        if (kind := what_is("", start)) and b"ustar" not in start:  # such as a .tar.xz
            raise errors.UserError(f"cannot read {shown} as a tar archive; it is {kind}") from None
        raise _incomplete(f"{shown} is not a complete tar archive", error) from None


def _crc32(file: IO[bytes], start: int, length: int) -> int:
    file.seek(start)
    crc = 0
    while length and (block := file.read(min(length, _COPY_BYTES))):
        crc = deflate.crc32(block, crc)
        length -= len(block)
    return crc


def _tar_problem(info: tarfile.TarInfo) -> tuple[str, str] | None:
    if info.size < 0:
        return "unreadable_member", "its size is negative"
    if info.issym() or info.islnk():
        return "link", f"a link to {info.linkname}"
    if not info.isreg() or info.sparse:
        return "not_a_file", "a device, pipe or sparse file"
    return None


def _incomplete(what: str, error: Exception) -> errors.UserError:
    return errors.UserError(f"{what} ({error}); download or copy it again")


def _start(path: Path) -> bytes:
    """Returns the first four bytes of a file, which identify its format."""
    with errors.clear_read_errors(str(path)), path.open("rb") as file:
        return file.read(4)
