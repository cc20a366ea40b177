"""The members of a zip: listed once, read one by one from anything that gives ranges of bytes.

Names, sizes and offsets come from the standard library. What is written here is only the worker's
part, which reads one member by the offset the launcher found: opening a zip of 170,000 members
anew in every worker costs a second and a hundred megabytes each.
"""

from __future__ import annotations

import io
import stat
import struct
import zipfile
from collections.abc import Callable, Iterator
from typing import IO, NamedTuple

import deflate

from pipelines import errors
from pipelines.sources.listing import ImageRef, Member
from tfrecord_io.preprocess import Reject

# APPNOTE.TXT 4.3.7: a local header is 30 bytes, then the name and an extra field, whose lengths
# stand at its end.
_ZIP_HEADER_LENGTH = 30
_ZIP_HEADER_SIGNATURE = b"PK\x03\x04"
_ENCRYPTED = 0x1

# APPNOTE.TXT 4.3.16 and 4.3.14: the end record, which a comment may follow, and the zip64 one.
_END_SIGNATURE = b"PK\x05\x06"
_END_64_SIGNATURE = b"PK\x06\x06"
_END_LENGTH = 22
# With the zip64 locator and the zip64 end record before it, without and with the longest comment.
_SHORTEST_END = 56 + 20 + _END_LENGTH
_LONGEST_END = _SHORTEST_END + 0xFFFF

#: What a zip begins with: a member, or the end record of one without members.
SIGNATURES = (_ZIP_HEADER_SIGNATURE, _END_SIGNATURE)


def list_members(file: IO[bytes], size: int, shown: str) -> Iterator[Member]:
    """Yields every file of a zip, from the directory at its end.

    Args:
        file: the archive, which can be sought.
        size: its bytes.
        shown: what it is called in an error.

    Raises:
        errors.UserError: if it is no complete zip.
    """
    try:
        with open_zip(file) as archive:
            infos = archive.infolist()
    except (zipfile.BadZipFile, OSError, EOFError, ValueError, NotImplementedError) as error:
        raise errors.UserError(
            f"{shown} is not a complete zip archive ({error}); download or copy it again"
        ) from None
    for info in infos:
        # Not `is_dir`, which fails on an empty name.
        if not info.filename.endswith("/"):
            yield Member(
                info.filename,
                info.file_size,
                info.header_offset,
                info.compress_size,
                info.CRC,
                _problem(info, size),
            )


def open_zip(file: IO[bytes]) -> zipfile.ZipFile:
    """Opens a zip whose directory lists as many members as its end record counts.

    `zipfile` does not compare the two, and a damaged length in one entry of the directory hides
    the entries that follow it.

    Args:
        file: the archive, which can be sought.

    Raises:
        zipfile.BadZipFile: if it is no zip, or members are missing from its directory.
    """
    archive = zipfile.ZipFile(file)
    num_listed = len(archive.infolist())
    num_promised = _find_end(file).num_members
    # Without a zip64 record the count has 16 bits; some writers let it wrap around instead.
    if num_promised not in (num_listed, num_listed % (1 << 16)):
        archive.close()
        raise zipfile.BadZipFile(f"{num_promised:,} members promised, {num_listed:,} listed")
    return archive


class _End(NamedTuple):
    """What the end record of a zip says of its directory."""

    num_members: int


def _find_end(file: IO[bytes]) -> _End:
    """Reads the end record; of a zip without a comment it needs the last hundred bytes."""
    size = file.seek(0, io.SEEK_END)
    for length in (_SHORTEST_END, _LONGEST_END):
        file.seek(max(0, size - length))
        tail = file.read()
        place = tail.rfind(_END_SIGNATURE)
        if place == len(tail) - _END_LENGTH:
            break
    (num_members,) = struct.unpack_from("<H", tail, place + 10)
    place_64 = tail.rfind(_END_64_SIGNATURE, 0, place)
    if num_members == 0xFFFF and place_64 >= 0:
        (num_members,) = struct.unpack_from("<Q", tail, place_64 + 32)
    return _End(num_members)


def _problem(info: zipfile.ZipInfo, archive_size: int) -> tuple[str, str] | None:
    if not 0 <= info.header_offset <= archive_size - info.compress_size:
        return "unreadable_member", "the index of the archive points outside it"
    if info.flag_bits & _ENCRYPTED:
        return "encrypted", "the member is encrypted"
    # The upper half of the attributes is the Unix mode, if the archive was made there.
    if stat.S_ISLNK(info.external_attr >> 16):
        return "link", "a symbolic link"
    return None


def read_member(read_at: Callable[[int, int], bytes], ref: ImageRef) -> bytes:
    """Returns a member's content, in one read unless its header is uncommonly long.

    Args:
        read_at: returns bytes of the archive, given the first one and their number; fewer where
            the archive ends.
        ref: the member.

    Raises:
        Reject: if it is damaged, or compressed in a way that is not supported.
    """
    # One read a member: the local header's variable part is guessed to be short.
    guess = len(ref.source_path.encode()) + 64
    wanted = _ZIP_HEADER_LENGTH + guess + ref.stored_size
    block = read_at(ref.offset, wanted)
    if len(block) < _ZIP_HEADER_LENGTH or not block.startswith(_ZIP_HEADER_SIGNATURE):
        raise Reject("unreadable_member", "the archive has no member where its index says")
    method = int.from_bytes(block[8:10], "little")
    start = (
        _ZIP_HEADER_LENGTH
        + int.from_bytes(block[26:28], "little")
        + int.from_bytes(block[28:30], "little")
    )
    stored = memoryview(block)[start : start + ref.stored_size]
    if len(stored) < ref.stored_size:
        stored = memoryview(read_at(ref.offset + start, ref.stored_size))
    data = _inflate(stored, method, ref.size)
    if len(data) != ref.size or deflate.crc32(data) != ref.version:
        raise Reject("unreadable_member", "damaged in the archive: its CRC-32 does not fit")
    return data


def _inflate(stored: memoryview, method: int, size: int) -> bytes:
    """Undoes a member's compression, into no more memory than its declared size."""
    if method == zipfile.ZIP_STORED:
        return bytes(stored)
    if method != zipfile.ZIP_DEFLATED:
        raise Reject("unreadable_member", f"compression method {method} is not supported")
    try:
        return bytes(deflate.deflate_decompress(stored, size))
    except deflate.DeflateError:
        raise Reject(
            "unreadable_member", f"damaged in the archive: it does not inflate to {size} bytes"
        ) from None
