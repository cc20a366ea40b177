"""Finds the pages of a TIFF file, and which of them are images (TIFF 6.0; BigTIFF).

Pillow decodes the pages, but it walks from page to page and does not get past a damaged one.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import struct
from collections.abc import Iterator
from typing import BinaryIO, Literal, NamedTuple

#: How files begin: classic TIFF and BigTIFF, little-endian and big-endian.
SIGNATURES = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")

#: Pages of a file that are looked at; with more of them, finding one would take too long.
MAX_PAGES = 16_384

# TIFF 6.0, section 8. In the first, bit 0 marks a smaller version of another page, and bit 2 a
# transparency mask. In the second, which is obsolete, 2 marks a smaller version.
_NEW_SUBFILE_TYPE, _SUBFILE_TYPE = 254, 255

# A picture needs five tags: its two sides, the place and length of its pixels, and what they mean.
_LEAST_DIRECTORY_BYTES = 2 + 5 * 12 + 4

#: Places and lengths of the strips or the tiles of a page.
STRIPS, STRIP_BYTES = 273, 279
TILES, TILE_BYTES = 324, 325

# Tags of what is elsewhere: free space, other directories, parts of JPEG in its obsolete form.
_ELSEWHERE = {288, 330, 513, 519, 520, 521, 34665, 34853, 40965}

# TIFF 6.0, section 2, and BigTIFF: the types of tags, with the letters of the struct module.
_SHORT, _LONG, _LONG_8 = 3, 4, 16
_NUMBERS = {_SHORT: "H", _LONG: "I", _LONG_8: "Q"}
_SIZES = {1: 1, 2: 1, 3: 2, 4: 4, 5: 8, 6: 1, 7: 1, 8: 2, 9: 4, 10: 8, 11: 4, 12: 8, 16: 8, 17: 8}


class Page(NamedTuple):
    """A page of a file.

    Attributes:
        place: where its directory of tags begins, in bytes.
        kind: empty for an image, `reduced_page` for a thumbnail or another smaller version of a
            page, `mask_page` for a transparency mask.
    """

    place: int
    kind: str = ""


def is_tiff(start: bytes) -> bool:
    """Tells by the first four bytes whether a file is TIFF."""
    return start[:4] in SIGNATURES


def read_pages(file: BinaryIO, *, is_whole: bool) -> list[Page] | None:
    """Returns the pages of a file, in order, up to the first whose directory is damaged.

    Args:
        file: the file, or as much of its beginning as is at hand; only its tags are read.
        is_whole: whether it is all of the file.

    Returns:
        the pages, including the damaged one, but at most one more than `MAX_PAGES`; None if the
        next one lies beyond the bytes at hand.
    """
    pages = []
    try:
        tiff = _File(file)
        for place, tags in itertools.islice(tiff.directories(), MAX_PAGES + 1):
            pages.append(Page(place, _kind(tiff, tags)))
    except EOFError:
        if not is_whole:
            return None
    return pages


def with_first_page(file: BinaryIO, number: int) -> io.BytesIO:
    """Returns a file that begins with one of the pages, which Pillow then opens.

    It holds that page alone, and nothing else is read of the file. But if parts of the
    page may be elsewhere than in its strips, it is the whole file, beginning with that page.

    Args:
        file: the file.
        number: number of the page, from 1; every page counts.

    Raises:
        IndexError: if the file has fewer pages.
        EOFError: if the page is behind a damaged directory.
    """
    tiff = _File(file)
    directory = next(itertools.islice(tiff.directories(), number - 1, None), None)
    if directory is None:
        raise IndexError(f"the file has no page {number}")
    place, tags = directory
    with contextlib.suppress(EOFError):
        if page := _cut_out(tiff, tags):
            return page
    whole = io.BytesIO(tiff.read(0, tiff.size))
    struct.pack_into(tiff.place_format, whole.getbuffer(), tiff.first, place)
    return whole


class _File:
    """Reads the directories of a file.

    Attributes:
        size: of the file in bytes.
        order: of the bytes in its numbers.
        mark: the same for the struct module, whose formats the next three are.
        place_format: of a place in the file.
        count_format: of the number of a directory's tags.
        tag_format: of a tag.
        first: where the place of the first page is.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.size = file.seek(0, io.SEEK_END)
        signature = self.read(0, 4)
        self.order: Literal["little", "big"] = "big" if signature.startswith(b"MM") else "little"
        self.mark = ">" if self.order == "big" else "<"
        is_big_tiff = b"+" in signature[2:]
        self.place_format, self.count_format, self.tag_format = (
            self.mark + letters
            for letters in (("Q", "Q", "HHQ8s") if is_big_tiff else ("I", "H", "HHI4s"))
        )
        self.first = 8 if is_big_tiff else 4

    def read(self, place: int, num_bytes: int) -> bytes:
        """Returns bytes of the file.

        Raises:
            EOFError: if they are not all there.
        """
        if place + num_bytes > self.size:
            raise EOFError
        self._file.seek(place)
        content = self._file.read(num_bytes)
        if len(content) < num_bytes:
            raise EOFError
        return content

    def directories(self) -> Iterator[tuple[int, bytes]]:
        """Yields the place and the tags of each page; no tags of a damaged one, which is the last.

        Raises:
            EOFError: if there is a damaged one.
        """
        num_bytes_left, seen = self.size, set()
        place = self._number(self.place_format, self.first)
        # A page that points back to another one ends the file, as for Pillow.
        while place and place not in seen:
            seen.add(place)
            try:
                start = place + struct.calcsize(self.count_format)
                num_tags = self._number(self.count_format, place)
                end = start + num_tags * struct.calcsize(self.tag_format)
                following = self._number(self.place_format, end)
                # Directories that overlap, or are too small, could give a damaged file millions of
                # pages.
                num_bytes_left -= max(end - place, _LEAST_DIRECTORY_BYTES)
                if num_bytes_left < 0:
                    raise EOFError
                tags = self.read(start, end - start)
            except EOFError:
                yield place, b""
                raise
            yield place, tags
            place = following

    def numbers(self, values: _Values, tag: int) -> tuple[int, ...]:
        """Returns the whole numbers of a tag; none if there is no such tag."""
        kind, count, content = values.get(tag, (_SHORT, 0, b""))
        letter = _NUMBERS.get(kind)
        return struct.unpack_from(f"{self.mark}{count}{letter}", content) if letter else ()

    def split(self, tags: bytes) -> Iterator[tuple[int, int, int, bytes]]:
        """Yields number, type, number of values, and values of each tag, or the place of these."""
        return struct.iter_unpack(self.tag_format, tags)

    def _number(self, kind: str, place: int) -> int:
        return struct.unpack(kind, self.read(place, struct.calcsize(kind)))[0]


#: Type, number of values, and the values of each tag of a page.
_Values = dict[int, tuple[int, int, bytes]]


def _read_values(tiff: _File, tags: bytes) -> tuple[_Values, int] | None:
    """Returns the values of all tags of a page, and where the last one ends outside of the tags.

    Returns None if parts of the page may be anywhere.

    Raises:
        EOFError: if a value is beyond the end of the file.
    """
    values: _Values = {}
    end, num_bytes_left = 0, tiff.size
    for tag, kind, count, value in tiff.split(tags):
        num_bytes = count * _SIZES.get(kind, 0)
        num_bytes_left -= num_bytes
        if tag in _ELSEWHERE or tag in values or not num_bytes or num_bytes_left < 0:
            return None
        if num_bytes > len(value):
            start = int.from_bytes(value, tiff.order)
            value = tiff.read(start, num_bytes)
            end = max(end, start + num_bytes)
        values[tag] = kind, count, value
    return values, end


def end_of_pages(file: BinaryIO) -> int:
    """Returns where the last page, value, strip or tile of a file ends, in bytes.

    It is the end of the file if some of them may be anywhere, or the file is damaged.
    """
    tiff = _File(file)
    ends = [0]
    try:
        for place, tags in tiff.directories():
            directory = _read_values(tiff, tags)
            if directory is None:
                return tiff.size
            values, end = directory
            num_numbers = struct.calcsize(tiff.count_format) + struct.calcsize(tiff.place_format)
            ends += [place + num_numbers + len(tags), end]
            for pair in ((STRIPS, STRIP_BYTES), (TILES, TILE_BYTES)):
                places, sizes = (tiff.numbers(values, tag) for tag in pair)
                if len(places) != len(sizes) or not all(sizes):  # libtiff guesses what is missing
                    return tiff.size
                ends += map(sum, zip(places, sizes, strict=True))
    except EOFError:
        return tiff.size
    return max(ends)


def _cut_out(tiff: _File, tags: bytes) -> io.BytesIO | None:
    """Returns a file with one page alone, None if the page is not all in strips of known length.

    Raises:
        EOFError: if a part of it is beyond the end of the file.
    """
    directory = _read_values(tiff, tags)
    if directory is None or TILES in directory[0]:
        return None
    values, _ = directory
    places, lengths = (tiff.numbers(values, tag) for tag in (STRIPS, STRIP_BYTES))
    # libtiff guesses a length of 0. As above, strips that overlap could take any memory.
    if not places or not all(lengths) or len(places) != len(lengths) or sum(lengths) > tiff.size:
        return None

    place_size = struct.calcsize(tiff.place_format)
    start = end = tiff.first + place_size
    end += struct.calcsize(tiff.count_format) + len(tags) + place_size
    contents: list[bytes] = []

    def append(content: bytes) -> int:
        nonlocal end
        contents.append(content + b"\0" * (len(content) % 2))
        end += len(contents[-1])
        return end - len(contents[-1])

    moved = [append(tiff.read(*strip)) for strip in zip(places, lengths, strict=True)]
    kind = _LONG if place_size == 4 else _LONG_8
    content = struct.pack(f"{tiff.mark}{len(moved)}{_NUMBERS[kind]}", *moved)
    values[STRIPS] = kind, len(moved), content
    packed = struct.pack(tiff.count_format, len(values))
    for tag, (kind, count, value) in values.items():
        if len(value) > place_size:
            value = append(value).to_bytes(place_size, tiff.order)
        packed += struct.pack(tiff.tag_format, tag, kind, count, value)
    head = tiff.read(0, tiff.first) + struct.pack(tiff.place_format, start)
    return io.BytesIO(b"".join([head, packed, bytes(place_size), *contents]))


def _kind(tiff: _File, tags: bytes) -> str:
    """Returns the kind of a page, see `Page`."""
    kind = ""
    for tag, tag_type, _, value in tiff.split(tags):
        if tag in (_NEW_SUBFILE_TYPE, _SUBFILE_TYPE):
            number = int.from_bytes(value[: 2 if tag_type == _SHORT else 4], tiff.order)
            is_reduced = number == 2 if tag == _SUBFILE_TYPE else number & 1
            is_mask = tag == _NEW_SUBFILE_TYPE and number & 4
            kind = "reduced_page" if is_reduced else "mask_page" if is_mask else kind
    return kind
