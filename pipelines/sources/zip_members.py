"""Lists the members of a zip once, and reads them one by one by their byte ranges.

`list_members` reads the directory, on the launcher, with the standard library. `ZipReader` reads
one member, on a worker, by the offset that the launcher found: opening a zip of 170,000 members
would take a second and a hundred megabytes in each worker. The bytes come from its subclasses, in
`archive` for a local file and in `remote` for a URL.
"""

from __future__ import annotations

import contextlib
import io
import stat
import struct
import zipfile
import zlib
from collections.abc import Iterator
from typing import IO, BinaryIO, NamedTuple

import deflate

from pipelines import errors
from pipelines.listing.members import Member
from pipelines.listing.refs import ImageRef
from pipelines.sources.member_checks import Checks
from pipelines.sources.reader import Reader
from pipelines.stores.range_file import RangeFile
from tfrecord_io.rejects import Reject

# APPNOTE.TXT 4.3.7: a local header has 30 bytes, the last of which give the lengths of the name and
# the extra field that follow.
_ZIP_HEADER_LENGTH = 30
_ZIP_HEADER_SIGNATURE = b"PK\x03\x04"
_ENCRYPTED = 0x1

# APPNOTE.TXT 4.3.12: an entry of the directory: its flags, and the lengths of the name, the extra
# field and the comment that follow. One flag says that the name is UTF-8.
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

#: The first bytes of a zip: those of a member, or of the end record if it has no members.
SIGNATURES = (_ZIP_HEADER_SIGNATURE, _END_SIGNATURE)


def list_members(file: IO[bytes], size: int, shown: str) -> Iterator[Member]:
    """Yields every file of a zip, as listed in the directory at its end.

    Args:
        file: the archive, seekable.
        size: size of the archive in bytes.
        shown: name of the archive in an error.

    Raises:
        errors.UserError: if the archive is not a complete zip.
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
        # `ZipInfo.is_dir` fails on an empty name. A damaged name can end like a folder's.
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
    """Opens a zip, and checks that its directory lists as many members as its end record counts.

    `zipfile` does not compare the two numbers, so a damaged length in an entry of the directory
    would hide the entries that follow it. `zipfile` also refuses the whole zip if a name is marked
    as UTF-8 but is not valid; here such a name is left undecoded, see `member_names`.

    Args:
        file: the archive, seekable.

    Raises:
        zipfile.BadZipFile: if the file is not a zip, or members are missing from its directory.
    """
    try:
        archive = zipfile.ZipFile(file)
    except UnicodeDecodeError:
        renamed = _WithLegacyNames(file)
        archive = zipfile.ZipFile(renamed)
        renamed.change_headers(archive.infolist())
    num_listed = len(archive.infolist())
    num_promised = _find_end(file).num_members
    # The count has 16 bits unless there is a zip64 record, and some writers let it wrap around.
    if num_promised not in (num_listed, num_listed % (1 << 16)):
        archive.close()
        raise zipfile.BadZipFile(f"expected {num_promised:,} members, found {num_listed:,}")
    return archive


def member_names(archive: zipfile.ZipFile) -> list[str]:
    """Returns the members' names in order, with undecodable bytes as surrogates, as in a path.

    Args:
        archive: a zip that `open_zip` opened.
    """
    names = [info.filename for info in archive.infolist()]
    if isinstance(archive.fp, _WithLegacyNames):
        for index in archive.fp.indices:
            names[index] = names[index].encode("cp437").decode("utf-8", "surrogateescape")
    return names


class _WithLegacyNames(RangeFile):
    """A view of a zip that clears the UTF-8 flag of names that are not valid UTF-8.

    `zipfile` then decodes these names as code page 437, in which every byte is a character.

    Attributes:
        indices: positions of these members in the zip's directory.
    """

    def __init__(self, file: IO[bytes]) -> None:
        super().__init__(self._read_changed, file.seek(0, io.SEEK_END))
        self._file = file
        end = _find_end(file)
        file.seek(end.directory_start)
        directory = file.read(end.directory_length)
        self.indices: list[int] = []
        # Bytes that replace those of the file, by position.
        self._changes: dict[int, int] = {}
        place, index = 0, 0
        # zipfile itself raises an error if the directory ends within an entry.
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
        """Clears the flag in the members' local headers too, which `zipfile` compares."""
        for index in self.indices:
            self._changes[infos[index].header_offset + 7] = infos[index].flag_bits >> 8

    def _read_changed(self, start: int, length: int) -> bytes:
        self._file.seek(start)
        data = bytearray(self._file.read(length))
        for place, value in self._changes.items():
            if 0 <= place - start < len(data):
                data[place - start] = value
        return bytes(data)


def _is_utf_8(name: bytes) -> bool:
    try:
        name.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


class _End(NamedTuple):
    """The facts about a zip's directory in its end record."""

    num_members: int
    directory_start: int
    directory_length: int


def _find_end(file: IO[bytes]) -> _End:
    """Reads the end record, first in the last hundred bytes, where it is without a comment."""
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
        return "unreadable_member", "the index of the archive points outside the archive"
    if info.flag_bits & _ENCRYPTED:
        return "encrypted", "the member is encrypted"
    # The upper half of the attributes is the file mode if the archive was made on Unix.
    if stat.S_ISLNK(info.external_attr >> 16):
        return "link", "a symbolic link"
    return None


class ZipReader(Reader):
    """Reads the members of a zip; a subclass reads the bytes of the archive itself."""

    def __init__(self) -> None:
        self._checks = Checks()

    def read_at(self, start: int, length: int) -> bytes:
        """Returns bytes of the archive; fewer than `length` at its end."""
        raise NotImplementedError

    def read(self, ref: ImageRef) -> bytes:
        """Returns a member's content, in one read unless its header is unusually long.

        Args:
            ref: the member.

        Raises:
            Reject: if the member is damaged, or its compression method is not supported.
        """
        method, _, stored = self._read_stored(ref, ref.stored_size)
        data = _inflate(stored, method, ref.size)
        if len(data) != ref.size or deflate.crc32(data) != ref.version:
            raise Reject("unreadable_member", "damaged in the archive: its CRC-32 does not match")
        return data

    def read_start(self, ref: ImageRef, length: int) -> bytes:
        """Returns the first bytes of a member, without checking them.

        Args:
            ref: the member.
            length: number of bytes; fewer come back if the member has fewer, or is damaged.

        Raises:
            Reject: if the archive has no such member.
        """
        method, _, stored = self._read_stored(ref, min(ref.stored_size, length))
        if method != zipfile.ZIP_DEFLATED:
            return bytes(stored)
        with contextlib.suppress(zlib.error):
            return zlib.decompressobj(-zlib.MAX_WBITS).decompress(stored, length)
        return b""

    def open(self, ref: ImageRef) -> BinaryIO | None:
        """Opens a member of which a part is enough; None if it is compressed.

        A member is compared with its checksum when it is opened for the first time.

        Args:
            ref: the member.

        Raises:
            Reject: if the member is damaged.
        """
        method, start, _ = self._read_stored(ref, 0)
        if method != zipfile.ZIP_STORED:
            return None
        self._checks.once(ref.offset, lambda: self.read(ref))
        return io.BufferedReader(
            RangeFile(
                lambda place, length: self.read_at(ref.offset + start + place, length), ref.size
            )
        )

    def _read_stored(self, ref: ImageRef, length: int) -> tuple[int, int, memoryview]:
        """Returns a member's compression method, and the start and first bytes of its content.

        The start counts from the member's header.
        """
        # A guess at the length of the local header's variable part, so that one read is enough.
        guess = len(ref.source_path.encode()) + 64
        block = self.read_at(ref.offset, _ZIP_HEADER_LENGTH + guess + length)
        if len(block) < _ZIP_HEADER_LENGTH or not block.startswith(_ZIP_HEADER_SIGNATURE):
            raise Reject("unreadable_member", "the archive has no member where its index says")
        method = int.from_bytes(block[8:10], "little")
        start = (
            _ZIP_HEADER_LENGTH
            + int.from_bytes(block[26:28], "little")
            + int.from_bytes(block[28:30], "little")
        )
        stored = memoryview(block)[start : start + length]
        if len(stored) < length:
            stored = memoryview(self.read_at(ref.offset + start, length))
        return method, start, stored


def _inflate(stored: memoryview, method: int, size: int) -> bytes:
    """Decompresses a member, using no more memory than its declared size."""
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
