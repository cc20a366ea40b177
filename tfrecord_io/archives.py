"""Refuses zips and tars in which bytes belong to no member, so that files may be missing.

`zipfile` reads the index at the end of a zip, and `tarfile` up to the first mark of an end. They
look at nothing else, so they list only one of two archives that were joined with `cat`.
"""

from __future__ import annotations

import io
import struct
import tarfile
import zipfile
from typing import IO

#: The local header of a member: the lengths of the name and of the extra field that follow it
#: (APPNOTE.TXT 4.3.7).
HEADER = struct.Struct("<26xHH")
HEADER_SIGNATURE = b"PK\x03\x04"
# A member has a name of at least one byte.
_SHORTEST_MEMBER = HEADER.size + 1

# APPNOTE.TXT 4.3.9: checksum and sizes may follow a member, in 12 to 24 bytes, which are fewer than
# any member has.
_LONGEST_DESCRIPTOR = 24

# APPNOTE.TXT 4.3.14 to 4.3.16: the end record, which a comment may follow, and, before it, the
# zip64 end record and its locator.
_END_SIGNATURE = b"PK\x05\x06"
_END_64_SIGNATURE = b"PK\x06\x06"
_LOCATOR_64_SIGNATURE = b"PK\x06\x07"
_END_LENGTH = 22
_LOCATOR_64_LENGTH = 20
_SHORTEST_END = 56 + _LOCATOR_64_LENGTH + _END_LENGTH
_LONGEST_END = _SHORTEST_END + 0xFFFF

_UTF_8 = 0x800
_BLOCK_BYTES = 1024 * 1024

# Bytes that common tools write between two members, besides what the index tells: a data descriptor
# and a few fields of the local header.
_USUAL_SURPLUS = 128

#: The first bytes of a zip: those of a member, or of the end record if it has no members.
SIGNATURES = (HEADER_SIGNATURE, _END_SIGNATURE)


def open_zip(file: IO[bytes]) -> zipfile.ZipFile:
    """Opens a zip, and checks that its index names all members that the file holds.

    The index must have as many entries as the end record counts: a damaged length in an entry
    would hide the entries that follow it. All bytes of the file must be those of a member in the
    index, of the index, or zeros.

    The check reads few bytes besides the index. A gap of less than 31 bytes cannot hold a member.
    Where larger gaps are alike, because one tool wrote them, the first of them is looked at.

    Raises:
        zipfile.BadZipFile: if the file is not a zip, or members may be missing from its index.
    """
    try:
        archive = zipfile.ZipFile(file)
    except UnicodeDecodeError:
        raise zipfile.BadZipFile(
            "its index says that a name is UTF-8, which it is not; unpack it with the program that "
            "made it, and pack the files again"
        ) from None
    _check_end(file, len(archive.infolist()))
    _check_gaps(file, archive)
    return archive


class UnlistedBytesError(zipfile.BadZipFile):
    """A zip has bytes that are in no member of its index."""


def _check_end(file: IO[bytes], num_listed: int) -> None:
    """Checks the number of members, and that nothing follows the end record but its comment."""
    size = file.seek(0, io.SEEK_END)
    # The end record is found as zipfile finds it: in the last 22 bytes, where it is without a
    # comment, else by its last signature.
    for length in (_SHORTEST_END, _LONGEST_END):
        file.seek(max(0, size - length))
        tail = file.read()
        place = len(tail) - _END_LENGTH
        if tail.startswith(_END_SIGNATURE, place) and tail.endswith(b"\0\0"):
            break
        place = tail.rfind(_END_SIGNATURE)
    num_promised, comment_length = struct.unpack_from("<H8xH", tail, place + 10)
    if tail[place + _END_LENGTH + comment_length :].strip(b"\0"):
        raise zipfile.BadZipFile("other data follows its end")
    place_64 = tail.rfind(_END_64_SIGNATURE, 0, place)
    locator = tail[max(place - _LOCATOR_64_LENGTH, 0) : place]
    if place_64 >= 0 and locator.startswith(_LOCATOR_64_SIGNATURE):
        (num_promised,) = struct.unpack_from("<Q", tail, place_64 + 32)
    # The count has 16 bits unless there is a zip64 record, and some writers let it wrap around.
    if num_promised not in (num_listed, num_listed % (1 << 16)):
        raise zipfile.BadZipFile(f"expected {num_promised:,} members, found {num_listed:,}")


def _check_gaps(file: IO[bytes], archive: zipfile.ZipFile) -> None:
    """Checks that no bytes are left before, between and after the members."""
    end, before = 0, None  # where the members end so far, and which of them ends there
    alike: set[int] = set()
    for info in sorted(archive.infolist(), key=lambda info: info.header_offset):
        _check_gap(file, end, info.header_offset, before, alike)
        name = info.orig_filename
        # Without the flag, a name has one byte a character.
        is_short = name.isascii() or not info.flag_bits & _UTF_8
        name_length = len(name) if is_short else len(name.encode())
        info_end = info.header_offset + HEADER.size + name_length + info.compress_size
        if info.header_offset < 0 or info_end > archive.start_dir:
            raise zipfile.BadZipFile("its index points outside of its members")
        if info_end > end:
            end, before = info_end, info
    _check_gap(file, end, archive.start_dir, before, alike)


def _check_gap(
    file: IO[bytes], end: int, start: int, before: zipfile.ZipInfo | None, alike: set[int]
) -> None:
    """Checks the bytes from the end of one member, without its extra field, to the next.

    `before` is the member before the gap. The gap's length is added to `alike`, the lengths of
    those that were looked at.
    """
    if start - end < _SHORTEST_MEMBER:
        return
    surplus = start - end - (len(before.extra) if before else 0)
    if before and surplus <= _USUAL_SURPLUS:
        if surplus in alike:
            return
        alike.add(surplus)
    if before:
        end = _end_of_member(file, before)
    file.seek(end)
    while end < start:
        block = file.read(min(start - end, _BLOCK_BYTES))
        if block.strip(b"\0") or not block:
            raise UnlistedBytesError(
                f"{start - end:,} bytes at byte {end:,} belong to no member that its index names, "
                "so files may be missing; if zips were joined, or this one is a program that "
                "unpacks itself, unpack them one by one and give the folder"
            )
        end += len(block)


def _end_of_member(file: IO[bytes], info: zipfile.ZipInfo) -> int:
    """Returns where a member ends, by its local header, with the longest data descriptor."""
    file.seek(info.header_offset)
    header = file.read(HEADER.size)
    if not header.startswith(HEADER_SIGNATURE) or len(header) < HEADER.size:
        raise zipfile.BadZipFile(f"no member is at byte {info.header_offset:,}, as its index says")
    header_end = info.header_offset + HEADER.size + sum(HEADER.unpack(header))
    return header_end + info.compress_size + _LONGEST_DESCRIPTOR


def check_tar_end(file: IO[bytes], end: int) -> None:
    """Refuses a tar that is cut off, damaged between two members, or followed by other data.

    tarfile stops at a block of zeros, which marks the end, and also at a damaged header. Only zeros
    may follow the place where it stopped, as padding.

    Raises:
        tarfile.ReadError: if members may be missing.
    """
    file.seek(end)
    block = file.read(tarfile.BLOCKSIZE)
    if len(block) < tarfile.BLOCKSIZE:
        raise tarfile.ReadError("it is cut off: it has no end mark")
    if block.strip(b"\0"):
        raise tarfile.ReadError(f"it is damaged at byte {end:,}")
    while block := file.read(_BLOCK_BYTES):
        if block.strip(b"\0"):
            raise tarfile.ReadError(
                f"it ends at byte {end:,} but other data follows; if archives were joined, "
                "unpack them one by one and give the folder"
            )
