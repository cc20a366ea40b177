"""Opens zips by zipfile, whose index must name all members and tell how names are encoded."""

from __future__ import annotations

import io
import struct
import zipfile
from typing import IO

#: The local header of a member: the lengths of the name and of the extra field that follow it
#: (APPNOTE.TXT 4.3.7).
HEADER = struct.Struct("<26xHH")
HEADER_SIGNATURE = b"PK\x03\x04"

# APPNOTE.TXT 4.3.16: the end record, with the number of members; a comment may follow.
_END = struct.Struct("<4s6xH10x")
_END_SIGNATURE = b"PK\x05\x06"
_UTF_8 = 0x800


def open_zip(file: IO[bytes]) -> zipfile.ZipFile:
    """Opens a zip; members have the names that `name_of` finds.

    Raises:
        zipfile.BadZipFile: if the file is not a zip, its index points outside of it or names other
            members than its end record counts, or bytes are before the first member or behind the
            end, as in zips that were joined.
    """
    try:
        archive = zipfile.ZipFile(file)
    except UnicodeDecodeError:
        raise zipfile.BadZipFile(
            "its index says that a name is UTF-8, which it is not; unpack it with the program that "
            "made it, and pack the files again"
        ) from None
    infos = archive.infolist()
    file.seek(-_END.size - len(archive.comment), io.SEEK_END)
    signature, num_promised = _END.unpack(file.read(_END.size))
    first = min((info.header_offset for info in infos), default=0)
    if signature != _END_SIGNATURE or first:
        raise zipfile.BadZipFile(
            "other data is before its first member or behind its end; if archives were joined, "
            "unpack them one by one and give the folder"
        )
    if any(info.header_offset + info.compress_size > archive.start_dir for info in infos):
        raise zipfile.BadZipFile("its index points outside of its members")
    # 65535 stands for a larger number in a zip64 record, or some writers let it wrap around.
    if num_promised not in (0xFFFF, len(infos) % (1 << 16)):
        raise zipfile.BadZipFile(f"expected {num_promised:,} members, found {len(infos):,}")
    for info in infos:
        info.filename = name_of(info) or info.filename
    return archive


def name_of(info: zipfile.ZipInfo) -> str | None:
    """Returns the name of a member, or None if its encoding is not known.

    macOS writes UTF-8 without the flag of UTF-8, so valid UTF-8 is read as such; `zipfile` reads it
    as cp437.
    """
    if info.flag_bits & _UTF_8 or info.orig_filename.isascii():
        return info.filename
    try:
        return info.orig_filename.encode("cp437").decode()
    except UnicodeDecodeError:
        return None
