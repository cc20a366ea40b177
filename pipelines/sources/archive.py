"""Images in a zip on a disk or on a store; each is read in place.

The launcher lists the members once, and a worker reads each at the offset that was found: opening a
zip of 170,000 members would take a second and a hundred megabytes in each worker.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import mmap
import os
import shlex
import stat
import struct
import threading
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any, BinaryIO

import deflate

from pipelines import errors
from pipelines.sources.source import Member, Reader, Source
from tfrecord_io.decoding.rejects import START_BYTES, Reject, what_is
from tfrecord_io.stores import remote
from tfrecord_io.stores.files import announce
from tfrecord_io.stores.remote import RangeFile
from tfrecord_io.terminal.address import Address

_ENCRYPTED, _UTF_8 = 0x1, 0x800

# The local header of a member: its method of compression, and the lengths of the name and of the
# extra field that follow it (APPNOTE.TXT 4.3.7).
_HEADER = struct.Struct("<4s4xH16xHH")
_HEADER_SIGNATURE = b"PK\x03\x04"

# APPNOTE.TXT 4.3.16: the end record, with the number of members; a comment may follow.
_END = struct.Struct("<4s6xH10x")
_END_SIGNATURE = b"PK\x05\x06"


@dataclasses.dataclass(frozen=True)
class LocalFile:
    """An archive on a disk that every worker can read, as `remote.StoredFile` is one on a store.

    Attributes:
        path: the file.
        version: its size in bytes, and the time of its last change in ns.
    """

    path: Path
    version: tuple[int, int]

    @property
    def url(self) -> str:
        return str(self.path)

    def open(self) -> BinaryIO:
        with errors.clear_read_errors(f"{self.path} (every worker must be able to read it)"):
            return self.path.open("rb")


def _version_of(file: Path | int) -> tuple[int, int]:
    status = os.stat(file)  # noqa: PTH116 - a Path has no descriptor
    return status.st_size, status.st_mtime_ns


@dataclasses.dataclass(frozen=True)
class ArchiveSource(Source):
    """Images in a zip, see `open_archive`. If the file changes, reading it is an error.

    Attributes:
        file: the archive.
        facts: its entry in the manifest.
    """

    file: LocalFile | remote.StoredFile
    facts: Mapping[str, Any]

    def members(self) -> Iterator[Member]:
        with self.file.open() as file:
            yield from zip_members(file, self.file.url)

    @contextlib.contextmanager
    def open(self) -> Iterator[ArchiveReader]:
        if isinstance(self.file, LocalFile):
            with self.file.open() as file:
                yield _LocalReader(file.fileno(), self.file)
        else:
            reader = ArchiveReader(self.file.read, self.file.size)
            reader.num_parallel_reads = remote.NUM_CONNECTIONS
            yield reader

    def describe(self) -> dict[str, Any]:
        return {**self.facts}


def open_archive(place: Path | Address, **facts: Any) -> ArchiveSource:
    """Returns the source of a zip on a disk or on an object store; `facts` are for the manifest.

    Raises:
        errors.UserError: if there is no such file, or it is not a whole zip.
        errors.StoreError: if the store does not answer, or refuses.
    """
    file: LocalFile | remote.StoredFile
    if isinstance(place, Path):
        file = LocalFile(place, _version_of(place))
    else:
        try:
            file = remote.describe(place)
        except FileNotFoundError:
            raise errors.UserError(f"--input {place} is not a file") from None
    name = str(place).rstrip("/").rsplit("/", 1)[-1]
    with errors.clear_read_errors(str(place)), file.open() as opened:
        start = opened.read(START_BYTES)
    if not start.startswith(b"PK"):
        kind = what_is(name, start)
        raise errors.UserError(
            f"{place} is not a zip{f', but {kind}' if kind else ''}; unpack others, as with "
            f"tar xf {shlex.quote(name)} -C FOLDER, and give the folder as --input; a table of the "
            "images is given as --labels"
        )
    return ArchiveSource(file, {"kind": "archive", "name": name, **facts})


class ArchiveReader(Reader):
    """Reads the members of a zip of `size` bytes.

    `read_at` returns bytes of the archive itself, by a place and a length that exist.
    """

    def __init__(self, read_at: Callable[[int, int], bytes | memoryview], size: int) -> None:
        self._read_existing = read_at
        self._size = size
        self._checked: set[int] = set()
        self._lock = threading.Lock()

    def _read_at(self, start: int, length: int) -> memoryview:
        # Some stores refuse a range that ends beyond the file.
        length = min(length, self._size - start)
        return memoryview(self._read_existing(start, length) if length > 0 else b"")

    def require_unchanged(self) -> None:
        """Raises `errors.BuildError` if the archive is not what was listed."""

    def read(self, member: Member) -> bytes:
        """Returns a member's content, in one read unless its header is unusually long."""
        method, _, stored = self._read_stored(member, member.stored_size)
        if method == zipfile.ZIP_DEFLATED:
            try:  # in no more memory than its declared size
                data = bytes(deflate.deflate_decompress(stored, member.size))
            except deflate.DeflateError:
                raise self._damaged("it does not inflate to its size") from None
        else:
            data = bytes(stored)
        if len(data) != member.size or deflate.crc32(data) != member.version:
            raise self._damaged("its checksum is wrong")
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
        with self._lock:
            if member.offset not in self._checked:
                self.read(member)
                self._checked.add(member.offset)
        return io.BufferedReader(RangeFile(self._read_at, member.size, member.offset + start))

    def _read_stored(self, member: Member, length: int) -> tuple[int, int, memoryview]:
        """Returns a member's compression method, the length of its header, and its first bytes."""
        # A guess at the length of the local header's variable part, so that one read is enough.
        guess = len(member.name.encode()) + 64
        block = self._read_at(member.offset, _HEADER.size + guess + length)
        if len(block) < _HEADER.size or block[:4] != _HEADER_SIGNATURE:
            raise self._damaged("it is not where the index says")
        _, method, *lengths = _HEADER.unpack_from(block)
        start = _HEADER.size + sum(lengths)
        stored = block[start : start + length]
        if len(stored) < length:
            stored = self._read_at(member.offset + start, length)
        return method, start, stored

    def _damaged(self, how: str) -> Reject:
        self.require_unchanged()
        return Reject("unreadable_member", f"damaged in the archive: {how}")


class _LocalReader(ArchiveReader):
    """Reads an archive on a disk, which is open."""

    def __init__(self, descriptor: int, file: LocalFile) -> None:
        super().__init__(self._pread, file.version[0])
        self._descriptor = descriptor
        self._file = file

    def _pread(self, start: int, length: int) -> bytes:
        with errors.clear_read_errors(self._file.url):
            data = os.pread(self._descriptor, length, start)
        if len(data) != length:
            raise errors.changed(self._file.url)
        return data

    def require_unchanged(self) -> None:
        if _version_of(self._descriptor) != self._file.version:
            raise errors.changed(self._file.url)

    def announce(self, member: Member) -> None:
        # An invalid offset is reported when the member is read.
        with contextlib.suppress(OSError, OverflowError):
            # A page more, because a header is before the content: a page that is not
            # announced would be waited for behind all that are.
            announce(self._descriptor, member.offset, member.stored_size + mmap.PAGESIZE)


def open_zip(file: IO[bytes]) -> zipfile.ZipFile:
    """Opens a zip whose index has all of its members.

    Raises:
        zipfile.BadZipFile: if the file is not a zip, its index points outside of it or names other
            members than its end record counts, or bytes are before the first member or behind the
            end, as in zips that were joined.
    """
    archive = zipfile.ZipFile(file)
    infos = archive.infolist()
    file.seek(-_END.size - len(archive.comment), io.SEEK_END)
    signature, num_promised = _END.unpack(file.read(_END.size))
    if (
        signature != _END_SIGNATURE
        or min((info.header_offset for info in infos), default=0)
        or any(info.header_offset + info.compress_size > archive.start_dir for info in infos)
        # 65535 stands for a larger number in a zip64 record, or some writers let it wrap around.
        or num_promised not in (0xFFFF, len(infos) % (1 << 16))
    ):
        raise zipfile.BadZipFile(
            f"its index of {len(infos):,} members does not fit the file, as where archives were "
            "joined; unpack these one by one, and give the folder"
        )
    return archive


def zip_members(file: IO[bytes], shown: str) -> Iterator[Member]:
    """Yields every file of a zip, which an error calls `shown`; see `open_zip`."""
    try:
        with errors.clear_read_errors(shown):
            infos = open_zip(file).infolist()
        for info in infos:
            if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                raise zipfile.BadZipFile(
                    f"{info.filename!r} is compressed by method {info.compress_type}, not by 8"
                )
            # macOS writes UTF-8 without the flag of UTF-8; `zipfile` reads it as cp437.
            if not info.flag_bits & _UTF_8 and not info.orig_filename.isascii():
                info.filename = info.orig_filename.encode("cp437").decode()
    except (zipfile.BadZipFile, OSError, EOFError, ValueError, NotImplementedError) as error:
        why = "a name is not UTF-8" if isinstance(error, UnicodeDecodeError) else error
        raise errors.UserError(
            f"{shown} is not a complete zip that can be read ({why}). Download or copy it again; "
            "unpack it with the program that packed it, and give the folder as --input; or, if it "
            "was split into parts, join them first: cat NAME.zip.* > NAME.zip for NAME.zip.001, or "
            "zip -s 0 NAME.zip --out WHOLE.zip for NAME.z01"
        ) from None
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
