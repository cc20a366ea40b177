"""Finds the pages of a TIFF file, and which of them are images (TIFF 6.0; BigTIFF).

Pillow decodes the pages, but it walks from page to page and does not get past a damaged one.
"""

from __future__ import annotations

import io
import struct
from typing import BinaryIO, Literal, NamedTuple

#: How files begin: classic TIFF and BigTIFF, little-endian and big-endian.
SIGNATURES = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")

# TIFF 6.0, section 8. In the first, bit 0 marks a smaller version of another page, and bit 2 a
# transparency mask. In the second, which is obsolete, 2 marks a smaller version.
_NEW_SUBFILE_TYPE, _SUBFILE_TYPE = 254, 255

# A picture needs five tags: its two sides, the place and length of its pixels, and what they mean.
_LEAST_DIRECTORY_BYTES = 2 + 5 * 12 + 4

# TIFF 6.0, section 2: the type of a tag whose value has two bytes.
_SHORT = 3


class Page(NamedTuple):
    """A page of a file.

    Attributes:
        place: where its directory of tags begins, in bytes.
        kind: empty for an image, `reduced_page` for a thumbnail or another smaller version of a
            page, `mask_page` for a transparency mask.
    """

    place: int
    kind: str = ""


class _Layout(NamedTuple):
    """Formats of the struct module, and where the place of the first page is."""

    order: Literal["little", "big"]
    first: int
    place: str
    count: str
    tag: str


def is_tiff(start: bytes) -> bool:
    """Tells by the first four bytes whether a file is TIFF."""
    return start[:4] in SIGNATURES


def read_pages(file: BinaryIO, *, is_whole: bool) -> list[Page] | None:
    """Returns the pages of a file, in order. Behind a damaged directory no page can be found.

    Args:
        file: the file, or as much of its beginning as is at hand; only its tags are read.
        is_whole: whether it is all of the file.

    Returns:
        the pages, with a damaged one; None if the next one lies beyond the bytes at hand.
    """
    num_bytes_left = size = file.seek(0, io.SEEK_END)

    def read(place: int, num_bytes: int) -> bytes:
        if place + num_bytes > size:
            raise EOFError
        file.seek(place)
        found = file.read(num_bytes)
        if len(found) < num_bytes:
            raise EOFError
        return found

    def read_number(kind: str, place: int) -> int:
        return struct.unpack(kind, read(place, struct.calcsize(kind)))[0]

    pages: dict[int, Page] = {}
    try:
        layout = _layout(read(0, 4))
        tag_size = struct.calcsize(layout.tag)
        place = read_number(layout.place, layout.first)
        # A page that points back to another one ends the file, as for Pillow.
        while place and place not in pages:
            pages[place] = Page(place)
            start = place + struct.calcsize(layout.count)
            end = start + tag_size * read_number(layout.count, place)
            following = read_number(layout.place, end)
            # Directories that overlap, or are too small, could give a damaged file millions of
            # pages.
            num_bytes_left -= max(end - place, _LEAST_DIRECTORY_BYTES)
            if num_bytes_left < 0:
                raise EOFError
            tags = read(start, end - start)
            for tag, tag_type, _, value in struct.iter_unpack(layout.tag, tags):
                if kind := _kind(tag, tag_type, value, layout.order):
                    pages[place] = Page(place, kind)
            place = following
    except EOFError:
        if not is_whole:
            return None
    return list(pages.values())


def with_first_page(data: bytes, number: int) -> io.BytesIO:
    """Returns a file that begins with one of its pages, which Pillow then opens.

    Args:
        data: the whole file.
        number: number of the page, from 1; every page counts.

    Raises:
        IndexError: if the file has fewer pages.
    """
    file = io.BytesIO(data)
    page = (read_pages(file, is_whole=True) or [])[number - 1]
    file.seek(0)
    layout = _layout(data[:4])
    struct.pack_into(layout.place, file.getbuffer(), layout.first, page.place)
    return file


def _layout(signature: bytes) -> _Layout:
    order: Literal["little", "big"] = "big" if signature.startswith(b"MM") else "little"
    mark = ">" if order == "big" else "<"
    is_big_tiff = b"+" in signature[2:]
    formats = ("Q", "Q", "HHQ8s") if is_big_tiff else ("I", "H", "HHI4s")
    return _Layout(order, 8 if is_big_tiff else 4, *(mark + letters for letters in formats))


def _kind(tag: int, tag_type: int, value: bytes, order: Literal["little", "big"]) -> str:
    """Returns what a tag says of the kind of its page, see `Page`."""
    if tag not in (_NEW_SUBFILE_TYPE, _SUBFILE_TYPE):
        return ""
    number = int.from_bytes(value[: 2 if tag_type == _SHORT else 4], order)
    is_reduced = number == 2 if tag == _SUBFILE_TYPE else number & 1
    is_mask = tag == _NEW_SUBFILE_TYPE and number & 4
    return "reduced_page" if is_reduced else "mask_page" if is_mask else ""
