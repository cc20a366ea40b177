"""Lists the members of a zip once, and reads them one by one by their byte ranges.

A worker reads a member at the offset that the launcher found: opening a zip of 170,000 members
would take a second and a hundred megabytes in each worker.
"""

from __future__ import annotations

import contextlib
import stat
import threading
import zipfile
import zlib
from collections.abc import Iterator
from typing import IO, BinaryIO

import deflate

from pipelines import errors
from pipelines.sources.source import Member, Reader
from tfrecord_io import archives
from tfrecord_io.rejects import Reject
from tfrecord_io.stores.range_file import open_range

_ENCRYPTED = 0x1


def list_members(file: IO[bytes], shown: str) -> Iterator[Member]:
    """Yields every file of a zip, which an error calls `shown`; see `archives.open_zip`."""
    try:
        with errors.clear_read_errors(shown):
            infos = archives.open_zip(file).infolist()
    except (zipfile.BadZipFile, OSError, EOFError, ValueError, NotImplementedError) as error:
        raise errors.UserError(
            f"{shown} is not a complete zip archive ({error}); download or copy it again"
        ) from None
    for info in infos:
        # `ZipInfo.is_dir` fails on an empty name. A damaged name can end like a folder's.
        if info.file_size or not info.filename.endswith("/"):
            yield Member(
                info.filename,
                info.file_size,
                info.header_offset,
                info.compress_size,
                info.CRC,
                _problem(info),
            )


def _problem(info: zipfile.ZipInfo) -> tuple[str, str] | None:
    if info.flag_bits & _ENCRYPTED:
        return "encrypted", "the member is encrypted"
    # The upper half of the attributes is the file mode if the archive was made on Unix.
    if stat.S_ISLNK(info.external_attr >> 16):
        return "link", "a symbolic link"
    return None


class ZipReader(Reader):
    """Reads the members of a zip; a subclass reads the bytes of the archive itself."""

    def __init__(self) -> None:
        self._checked: set[int] = set()
        self._locks: dict[int, threading.Lock] = {}

    def read_at(self, start: int, length: int) -> bytes:
        """Returns bytes of the archive; fewer than `length` at its end."""
        raise NotImplementedError

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
        return open_range(self.read_at, member.offset + start, member.size)

    def _read_stored(self, member: Member, length: int) -> tuple[int, int, memoryview]:
        """Returns a member's compression method, and the start and first bytes of its content.

        The start counts from the member's header.
        """
        # A guess at the length of the local header's variable part, so that one read is enough.
        guess = len(member.name.encode()) + 64
        header = archives.HEADER
        block = self.read_at(member.offset, header.size + guess + length)
        if len(block) < header.size or not block.startswith(archives.HEADER_SIGNATURE):
            found = f"bytes with the CRC-32 {deflate.crc32(block):08x}"
            raise self._damaged(f"{found} are where its index says that it begins")
        method = int.from_bytes(block[8:10], "little")
        start = header.size + sum(header.unpack_from(block))
        stored = memoryview(block)[start : start + length]
        if len(stored) < length:
            stored = memoryview(self.read_at(member.offset + start, length))
        return method, start, stored

    def _damaged(self, how: str) -> Reject:
        # The checksums in `how` show whether the same was read twice.
        self.require_unchanged()
        return Reject("unreadable_member", f"damaged in the archive: {how}")
