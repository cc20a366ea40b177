"""Writes small TIFF files byte by byte (TIFF 6.0, BigTIFF), and damages them."""

import contextlib
import io
import struct
from collections.abc import Mapping, Sequence

import numpy as np

from tfrecord_io.decoding.tiff_pages import Tiff

NEW_SUBFILE_TYPE, SUBFILE_TYPE = 254, 255

_SHORT, _LONG = 3, 4


def tiff_file(
    pages: Sequence[np.ndarray],
    tags: Mapping[int, Mapping[int, int]] | None = None,
    *,
    order: str = "<",
    is_big_tiff: bool = False,
) -> bytes:
    """Returns a TIFF file of grey pages, whose directories come after all pixels.

    Args:
        pages: uint8 or uint16 [height, width].
        tags: further tags by the number of their page, from 1; values of two bytes.
        order: `<` for little-endian, `>` for big-endian.
        is_big_tiff: whether places in the file have eight bytes.
    """
    place, count = (order + "Q", order + "Q") if is_big_tiff else (order + "I", order + "H")
    start = {"<": b"II", ">": b"MM"}[order] + struct.pack(order + "H", 43 if is_big_tiff else 42)
    start += struct.pack(order + "HH", 8, 0) if is_big_tiff else b""
    offsets, pixels = [], b""
    for page in pages:
        offsets.append(len(start) + struct.calcsize(place) + len(pixels))
        pixels += page.astype(page.dtype.newbyteorder(order)).tobytes() + b"\0" * (page.size % 2)
    data = start + struct.pack(place, offsets[-1] + len(pages[-1].tobytes()) + pages[-1].size % 2)
    data += pixels
    for number, (page, offset) in enumerate(zip(pages, offsets, strict=True), start=1):
        values = {
            256: page.shape[1], 257: page.shape[0], 258: 8 * page.itemsize, 259: 1, 262: 1,
            273: offset, 277: 1, 278: page.shape[0], 279: page.nbytes,
        } | dict((tags or {}).get(number, {}))  # fmt: skip
        directory = struct.pack(count, len(values))
        for tag, value in sorted(values.items()):
            kind = _LONG if tag in (273, 279, NEW_SUBFILE_TYPE) else _SHORT
            content = struct.pack(order + ("I" if kind == _LONG else "H"), value)
            size = struct.calcsize(place)
            directory += struct.pack(order + "HH", tag, kind)
            directory += struct.pack(place, 1) + content.ljust(size, b"\0")
        following = len(data) + len(directory) + struct.calcsize(place)
        data += directory + struct.pack(place, following if number < len(pages) else 0)
    return data


def places_of(data: bytes) -> list[int]:
    """Returns where the directory of each page begins, up to the first that is damaged."""
    places = []
    with contextlib.suppress(EOFError):
        for place, _ in Tiff(io.BytesIO(data)).directories():
            places.append(place)
    return places


def with_damaged_page(data: bytes, number: int) -> bytes:
    """Returns a little-endian file in which the width of a page is nowhere."""
    damaged = bytearray(data)
    struct.pack_into("<HHII", damaged, places_of(data)[number - 1] + 2, 256, 4, 10**6, 10**8)
    return bytes(damaged)
