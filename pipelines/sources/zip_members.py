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
from typing import IO, Any, NamedTuple

import deflate

from pipelines import errors
from pipelines.sources.listing import ImageRef, Member
from tfrecord_io.preprocess import Reject

# APPNOTE.TXT 4.3.7: a local header is 30 bytes, then the name and an extra field, whose lengths
# stand at its end.
_ZIP_HEADER_LENGTH = 30
_ZIP_HEADER_SIGNATURE = b"PK\x03\x04"
_ENCRYPTED = 0x1

# APPNOTE.TXT 4.3.12: an entry of the directory. Its flags, and the lengths of what follows it:
# name, extra field and comment. One flag says that the name is UTF-8.
_ENTRY = struct.Struct("<8xH18xHHH12x")
_UTF_8 = 0x800

# APPNOTE.TXT 4.3.14 to 4.3.16: the end record, which a comment may follow, and, before it, the
# zip64 end record and its locator.
_END_SIGNATURE = b"PK\x05\x06"
_END_64_SIGNATURE = b"PK\x06\x06"
_LOCATOR_64_SIGNATURE = b"PK\x06\x07"
_END_LENGTH = 22
_LOCATOR_64_LENGTH = 20
_SHORTEST_END = 56 + _LOCATOR_64_LENGTH + _END_LENGTH
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
            names = member_names(archive)
    except (zipfile.BadZipFile, OSError, EOFError, ValueError, NotImplementedError) as error:
        raise errors.UserError(
            f"{shown} is not a complete zip archive ({error}); download or copy it again"
        ) from None
    for info, name in zip(infos, names, strict=True):
        # Not `is_dir`, which fails on an empty name. A damaged name can end like a folder's.
        if info.file_size or not name.endswith("/"):
            yield Member(
                name,
                info.file_size,
                info.header_offset,
                info.compress_size,
                info.CRC,
                _problem(info, size),
            )


def open_zip(file: IO[bytes]) -> zipfile.ZipFile:
    """Opens a zip whose directory lists as many members as its end record counts.

    `zipfile` does not compare the two, and a damaged length in one entry of the directory hides
    the entries that follow it. It also refuses the whole zip for one name that is marked as UTF-8
    and is not; here such a name is left undecoded, see `member_names`.

    Args:
        file: the archive, which can be sought.

    Raises:
        zipfile.BadZipFile: if it is no zip, or members are missing from its directory.
    """
    try:
        archive = zipfile.ZipFile(file)
    except UnicodeDecodeError:
        renamed = _WithLegacyNames(file)
        archive = zipfile.ZipFile(renamed)
        renamed.change_headers(archive.infolist())
    num_listed = len(archive.infolist())
    num_promised = _find_end(file).num_members
    # Without a zip64 record the count has 16 bits; some writers let it wrap around instead.
    if num_promised not in (num_listed, num_listed % (1 << 16)):
        archive.close()
        raise zipfile.BadZipFile(f"{num_promised:,} members promised, {num_listed:,} listed")
    return archive


def member_names(archive: zipfile.ZipFile) -> list[str]:
    """Returns the members' names in order; bytes that are no text are surrogates, as in a path."""
    names = [info.filename for info in archive.infolist()]
    if isinstance(archive.fp, _WithLegacyNames):
        for index in archive.fp.indices:
            names[index] = names[index].encode("cp437").decode("utf-8", "surrogateescape")
    return names


class _WithLegacyNames(io.RawIOBase):
    """A zip in which the names that are marked as UTF-8 and are not have lost that mark.

    `zipfile` then decodes them as code page 437, in which every byte is a character.

    Attributes:
        indices: of these members in the zip's directory.
    """

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        end = _find_end(file)
        file.seek(end.directory_start)
        directory = file.read(end.directory_length)
        self.indices: list[int] = []
        # Bytes to be read instead of the file's own, by their place.
        self._changes: dict[int, int] = {}
        place, index = 0, 0
        # zipfile itself complains of a directory that ends before its entries do.
        while len(directory) - place >= _ENTRY.size:
            flags, *lengths = _ENTRY.unpack_from(directory, place)
            name = directory[place + _ENTRY.size :][: lengths[0]]
            if flags & _UTF_8 and not _is_utf_8(name):
                self.indices.append(index)
                # The upper byte of the flags.
                self._changes[end.directory_start + place + 9] = (flags & ~_UTF_8) >> 8
            place += _ENTRY.size + sum(lengths)
            index += 1

    def change_headers(self, infos: list[zipfile.ZipInfo]) -> None:
        """Takes the mark from the members' own headers, too, which `zipfile` reads with them."""
        for index in self.indices:
            self._changes[infos[index].header_offset + 7] = infos[index].flag_bits >> 8

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._file.tell()

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        return self._file.seek(offset, whence)

    def readinto(self, buffer: Any) -> int:
        start = self._file.tell()
        data = bytearray(self._file.read(len(buffer)))
        for place, value in self._changes.items():
            if 0 <= place - start < len(data):
                data[place - start] = value
        buffer[: len(data)] = data
        return len(data)


def _is_utf_8(name: bytes) -> bool:
    try:
        name.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


class _End(NamedTuple):
    """What the end record of a zip says of its directory."""

    num_members: int
    directory_start: int
    directory_length: int


def _find_end(file: IO[bytes]) -> _End:
    """Reads the end record; of a zip without a comment it needs the last hundred bytes."""
    size = file.seek(0, io.SEEK_END)
    for length in (_SHORTEST_END, _LONGEST_END):
        file.seek(max(0, size - length))
        tail = file.read()
        place = tail.rfind(_END_SIGNATURE)
        if place == len(tail) - _END_LENGTH:
            break
    num_members, directory_length = struct.unpack_from("<HI", tail, place + 10)
    place_64 = tail.rfind(_END_64_SIGNATURE, 0, place)
    locator = tail[max(place - _LOCATOR_64_LENGTH, 0) : place]
    if place_64 >= 0 and locator.startswith(_LOCATOR_64_SIGNATURE):
        place = place_64
        num_members, directory_length = struct.unpack_from("<QQ", tail, place + 32)
    directory_end = size - len(tail) + place
    return _End(num_members, directory_end - directory_length, directory_length)


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
