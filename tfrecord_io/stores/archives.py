"""Refuses zips and tars in which bytes belong to no member, so that files may be missing.

`zipfile` reads the index at the end of a zip, and `tarfile` up to the first mark of an end. They
look at nothing else, so they list only one of two archives that were joined with `cat`.
"""

from __future__ import annotations

import contextlib
import io
import struct
import tarfile
import zipfile
import zlib
from typing import IO

#: The local header of a member: the lengths of the name and of the extra field that follow it
#: (APPNOTE.TXT 4.3.7).
HEADER = struct.Struct("<26xHH")
HEADER_SIGNATURE = b"PK\x03\x04"
# A member has a name of at least one byte.
_SHORTEST_MEMBER = HEADER.size + 1

# APPNOTE.TXT 4.3.9: checksum and sizes may follow a member, in fewer bytes than any member has.
_LONGEST_DESCRIPTOR = 24

# APPNOTE.TXT 4.3.16: the end record, which a comment may follow.
_END_SIGNATURE = b"PK\x05\x06"
_END_LENGTH = 22

_UTF_8 = 0x800
# A field of a member's extra data: its kind and its length (APPNOTE.TXT 4.5.1).
_EXTRA = struct.Struct("<HH")
_UNICODE_PATH = 0x7075
_BLOCK_BYTES = 1024 * 1024

# Bytes that common tools write between members: a data descriptor, and fields of the local header.
_USUAL_SURPLUS = 128

#: The first bytes of a zip: those of a member, or of the end record if it has no members.
SIGNATURES = (HEADER_SIGNATURE, _END_SIGNATURE)


def open_zip(file: IO[bytes]) -> zipfile.ZipFile:
    """Opens a zip, and checks that its index names all members that the file holds.

    Members have the names that `name_of` finds.

    The index must have as many entries as the end record counts: a damaged length in an entry
    would hide the entries that follow it. All bytes of the file must be those of a member in the
    index, of the index, or zeros. Of gaps that are alike, because one tool wrote them, the first
    is looked at, so few bytes are read besides the index.

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
    _check_end(file, archive)
    _check_gaps(file, archive)
    for info in archive.infolist():
        info.filename = name_of(info) or info.filename
    return archive


def name_of(info: zipfile.ZipInfo) -> str | None:
    """Returns the name of a member, or None if its encoding is not known.

    The flag of UTF-8, or an extra field with the name in UTF-8 (APPNOTE.TXT 4.6.9), tells it. macOS
    writes UTF-8 without either, so valid UTF-8 is read as such; `zipfile` reads it as cp437.
    """
    if info.flag_bits & _UTF_8 or info.orig_filename.isascii():
        return info.filename
    stored = info.orig_filename.encode("cp437")
    extra = info.extra
    while len(extra) >= _EXTRA.size:
        kind, length = _EXTRA.unpack_from(extra)
        field, extra = extra[_EXTRA.size :][:length], extra[_EXTRA.size + length :]
        if kind == _UNICODE_PATH and field[:5] == b"\1" + struct.pack("<L", zlib.crc32(stored)):
            stored = field[5:]
    with contextlib.suppress(UnicodeDecodeError):
        return stored.decode()
    return None


def _check_end(file: IO[bytes], archive: zipfile.ZipFile) -> None:
    """Checks the number of members, and that nothing follows the end record but its comment."""
    size, length = file.seek(0, io.SEEK_END), _END_LENGTH + len(archive.comment)
    file.seek(max(0, size - length))
    tail = file.read()
    if not tail.startswith(_END_SIGNATURE):  # then something follows the record
        file.seek(max(0, size - length - 0xFFFF))
        tail = file.read()
        tail = tail[max(tail.rfind(_END_SIGNATURE), 0) :]
        if tail[length:].strip(b"\0"):
            raise zipfile.BadZipFile("other data follows its end")
    num_listed = len(archive.infolist())
    (num_promised,) = struct.unpack_from("<H", tail, 10)
    # It stands for a larger number in a zip64 record, or some writers let it wrap around.
    if num_promised not in (0xFFFF, num_listed % (1 << 16)):
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
    """Checks the bytes from the end of a member, `before`, without its extra field, to the next.

    `alike` are the lengths of the gaps that were looked at, to which it adds this one.
    """
    if start - end < _SHORTEST_MEMBER:
        return
    surplus = start - end - (len(before.extra) if before else 0)
    if before and surplus <= _USUAL_SURPLUS:
        if surplus in alike:
            return
        alike.add(surplus)
    if before:
        file.seek(before.header_offset)
        header = file.read(HEADER.size)
        if not header.startswith(HEADER_SIGNATURE) or len(header) < HEADER.size:
            raise zipfile.BadZipFile(
                f"no member is at byte {before.header_offset:,}, as its index says"
            )
        end = before.header_offset + HEADER.size + sum(HEADER.unpack(header))
        end += before.compress_size + _LONGEST_DESCRIPTOR
    file.seek(end)
    while end < start:
        block = file.read(min(start - end, _BLOCK_BYTES))
        if block.strip(b"\0") or not block:
            raise zipfile.BadZipFile(
                f"{start - end:,} bytes at byte {end:,} belong to no member that its index names, "
                "as in zips that were joined; unpack them one by one and give the folder"
            )
        end += len(block)


def check_tar_end(file: IO[bytes], end: int) -> None:
    """Refuses a tar in which anything but zeros follows the place where tarfile stopped.

    It stops at a block of zeros, which marks the end, and also at a damaged header.

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
