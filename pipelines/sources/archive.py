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
import stat
import struct
import threading
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import deflate

from pipelines import errors
from pipelines.sources.source import Member, Reader, Source
from tfrecord_io.decoding.rejects import Reject, what_is
from tfrecord_io.stores import remote
from tfrecord_io.stores.files import announce
from tfrecord_io.terminal.address import Address, is_remote

_ENCRYPTED = 0x1

# The local header of a member: its method of compression, and the lengths of the name and of the
# extra field that follow it (APPNOTE.TXT 4.3.7).
_HEADER = struct.Struct("<4s4xH16xHH")
_HEADER_SIGNATURE = b"PK\x03\x04"
# More than these two take, as a rule, so that one read is enough.
_NAME_BYTES = 512

# The end record, with the number of members, and the longest comment behind it (4.3.16).
_END = struct.Struct("<4s6xH10x")
_END_SIGNATURE = b"PK\x05\x06"
_COMMENT_BYTES = 0xFFFF


@dataclasses.dataclass(frozen=True)
class ArchiveSource(Source):
    """Images in a zip, see `open_archive`. If the file changes, reading it is an error.

    Attributes:
        file: the archive; on a disk, which every worker must be able to read, its mark is the time
            of its last change.
        facts: its entry in the manifest.
    """

    file: remote.StoredFile
    facts: Mapping[str, Any]

    def members(self) -> Iterator[Member]:
        """Yields every file; a link has a problem. A zip that is not read whole is refused."""
        url = self.file.url
        try:
            # macOS writes UTF-8 without the flag of UTF-8.
            with (
                errors.clear_read_errors(url),
                self.file.open() as file,
                zipfile.ZipFile(file, metadata_encoding="utf-8") as archive,
            ):
                infos = archive.infolist()
                file.seek(max(0, self.file.size - _END.size - _COMMENT_BYTES))
                end = file.read()
            _, num_promised = _END.unpack_from(end, end.rfind(_END_SIGNATURE))
            # 65535 stands for a larger number, or some writers let it wrap around.
            if num_promised not in (0xFFFF, len(infos) % (1 << 16)):
                raise zipfile.BadZipFile(f"it has {len(infos):,} of {num_promised:,} members")
            if min((info.header_offset for info in infos), default=0):
                raise zipfile.BadZipFile("it begins with other data, as where archives were joined")
            for info in infos:
                if info.flag_bits & _ENCRYPTED:
                    raise zipfile.BadZipFile(f"{info.filename!r} is encrypted")
                if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                    raise zipfile.BadZipFile(
                        f"{info.filename!r} is compressed by method {info.compress_type}, not by 8"
                    )
        except (zipfile.BadZipFile, OSError, EOFError, ValueError, NotImplementedError) as error:
            kind = None if url.lower().endswith(".zip") else what_is(url)
            raise errors.UserError(
                f"{url} is not a complete zip that can be read: {error}"
                f"{f'. By its name it is {kind}' if kind else ''}. Download or copy it again; "
                "unpack it with the program that packed it, and give the folder as --input; or, if "
                "it was split into parts, join them first: cat NAME.zip.* > NAME.zip for "
                "NAME.zip.001, or zip -s 0 NAME.zip --out WHOLE.zip for NAME.z01"
            ) from None
        for info in infos:
            # `ZipInfo.is_dir` fails on an empty name. A damaged name can end like a folder's.
            if info.file_size or not info.filename.endswith("/"):
                # The upper half of the attributes is the file mode if it was made on Unix.
                is_link = stat.S_ISLNK(info.external_attr >> 16)
                problem = ("link", "a symbolic link") if is_link else None
                place = info.header_offset, info.compress_size
                yield Member(info.filename, info.file_size, *place, info.CRC, problem)

    def same_content(self, one: Member, other: Member) -> bool:
        return one.version == other.version

    @contextlib.contextmanager
    def open(self) -> Iterator[ArchiveReader]:
        with contextlib.ExitStack() as stack:
            descriptor = None
            if not is_remote(self.file.url):
                with errors.clear_read_errors(self.file.url):
                    descriptor = stack.enter_context(Path(self.file.url).open("rb")).fileno()
            yield ArchiveReader(self.file, descriptor)

    def describe(self) -> dict[str, Any]:
        return {**self.facts}


def open_archive(place: Path | Address, **facts: Any) -> ArchiveSource:
    """Returns the source of a zip on a disk or on an object store; `facts` are for the manifest.

    Raises:
        errors.UserError: if the store has no file of this name.
        errors.StoreError: if the store does not answer, or refuses.
    """
    try:
        local = isinstance(place, Path)
        file = _on_disk(str(place), place.stat()) if local else remote.describe(place)
    except FileNotFoundError:
        raise errors.UserError(f"--input {place} is not a file") from None
    name = file.url.rstrip("/").rsplit("/", 1)[-1]
    return ArchiveSource(file, {"kind": "archive", "name": name, **facts})


def _on_disk(path: str, status: os.stat_result) -> remote.StoredFile:
    return remote.StoredFile(path, status.st_size, str(status.st_mtime_ns))


class ArchiveReader(Reader):
    """Reads the members of a zip; on a disk, by the `descriptor` of the open file."""

    def __init__(self, file: remote.StoredFile, descriptor: int | None) -> None:
        self._file, self._descriptor = file, descriptor
        self._checked, self._lock = set[int](), threading.Lock()
        self.num_parallel_reads = remote.NUM_CONNECTIONS if descriptor is None else 1

    def announce(self, member: Member) -> None:
        if self._descriptor is not None:
            # An invalid offset is reported when the member is read.
            with contextlib.suppress(OSError, OverflowError):
                # A page more, because a header is before the content: a page that is not
                # announced would be waited for behind all that are.
                announce(self._descriptor, member.offset, member.stored_size + mmap.PAGESIZE)

    def read(self, member: Member) -> bytes:
        """Returns a member's content, in one read unless its header is unusually long."""
        method, _, stored = self._read_stored(member, member.stored_size)
        data: bytes | bytearray | memoryview = stored
        if method == zipfile.ZIP_DEFLATED:
            try:  # in no more memory than its declared size
                data = deflate.deflate_decompress(stored, member.size)
            except deflate.DeflateError:
                raise self._damaged("it does not inflate to its size") from None
        if len(data) != member.size or deflate.crc32(data) != member.version:
            raise self._damaged("its checksum is wrong")
        return bytes(data)

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
        with self._lock:  # of the threads that want frames of it, one checks it
            if member.offset not in self._checked:
                self.read(member)
                self._checked.add(member.offset)
        return io.BufferedReader(remote.RangeFile(self._read_at, member.size, start))

    def _read_stored(self, member: Member, length: int) -> tuple[int, int, memoryview]:
        """Returns a member's compression method, the place of its content, and its first bytes."""
        block = self._read_at(member.offset, _HEADER.size + _NAME_BYTES + length)
        if len(block) < _HEADER.size or block[:4] != _HEADER_SIGNATURE:
            raise self._damaged("it is not where the index says")
        _, method, *lengths = _HEADER.unpack_from(block)
        start = _HEADER.size + sum(lengths)
        stored = block[start : start + length]
        if len(stored) < length:
            stored = self._read_at(member.offset + start, length)
        return method, member.offset + start, stored

    def _read_at(self, start: int, length: int) -> memoryview:
        # Some stores refuse a range that ends beyond the file.
        length = min(length, self._file.size - start)
        if length <= 0:
            return memoryview(b"")
        if self._descriptor is None:
            return memoryview(self._file.read(start, length))
        with errors.clear_read_errors(self._file.url):
            return memoryview(os.pread(self._descriptor, length, start))

    def _damaged(self, how: str) -> Exception:
        """Returns a Reject, or the error that the archive is not what was listed."""
        if self._descriptor is not None:
            now = _on_disk(self._file.url, os.fstat(self._descriptor))
            if now != self._file:
                return errors.changed(self._file.url)
        return Reject("unreadable_member", f"damaged in the archive: {how}")
