"""Recognises DICOM, and adds what begins such a file (PS3.10, section 7.1) where it is missing.

Older devices and research exports write the elements alone. Then the transfer syntax, which says
how they are encoded, may be missing too; the first elements tell it, unless pixels are compressed.
"""

from __future__ import annotations

import struct

_PREAMBLE = bytes(128) + b"DICM"
_IMPLICIT, _EXPLICIT, _BIG = (b"1.2.840.10008.1.2" + end for end in (b"\0", b".1\0", b".2\0"))

# The types of elements that begin a dataset, and those with four bytes of length (PS3.5, 7.1.2).
_TYPES = {b"AE", b"AS", b"CS", b"DA", b"DT", b"IS", b"LO", b"OB", b"PN", b"SH", b"ST", b"TM",
          b"UI", b"UL", b"UN", b"US"}  # fmt: skip
_LONG = {b"OB", b"UN"}

# The groups that can come first: that of the file, and that of identification. An element of the
# first groups is not longer than this.
_META, _FIRST = 0x0002, 0x0008
_LONGEST, _NUM_CHECKED = 1024, 3


def is_dicom(start: bytes) -> bool:
    """Tells by the first 132 bytes of a file whether it is DICOM, perhaps without its preamble."""
    return start[128:132] == b"DICM" or _syntax_of(start) is not None


def with_preamble(data: bytes) -> bytes:
    """Returns a file with preamble and transfer syntax; unchanged if it has them or is not DICOM.

    >>> with_preamble(b"GIF89a")
    b'GIF89a'
    """
    if data[128:132] == b"DICM" or (syntax := _syntax_of(data)) is None:
        return data
    if data[:2] == struct.pack("<H", _META):
        return _PREAMBLE + data
    syntax += b"\0" * (len(syntax) % 2)
    element = struct.pack("<HH2sH", _META, 0x0010, b"UI", len(syntax)) + syntax
    length = struct.pack("<HH2sHI", _META, 0, b"UL", 4, len(element))
    return _PREAMBLE + length + element + data


def lacks_preamble(start: bytes) -> bool:
    """Tells whether a file is DICOM without its first bytes."""
    return start[128:132] != b"DICM" and is_dicom(start)


def _syntax_of(start: bytes) -> bytes | None:
    """Returns the transfer syntax of the first elements; None if they are not those of DICOM."""
    return next(
        (
            syntax
            for syntax, order, is_explicit in (
                (_EXPLICIT, "<", True), (_BIG, ">", True), (_IMPLICIT, "<", False),
            )
            if _begins_with_elements(start, order, is_explicit)
        ),
        None,
    )  # fmt: skip


def _begins_with_elements(start: bytes, order: str, is_explicit: bool) -> bool:
    place, before, num_found = 0, -1, 0
    while place + 12 <= len(start) and num_found < _NUM_CHECKED:
        group, number = struct.unpack_from(f"{order}HH", start, place)
        if group not in (_META, _FIRST) or (group << 16 | number) <= before:
            return False
        before = group << 16 | number
        kind = start[place + 4 : place + 6]
        if not is_explicit:
            (length,), head = struct.unpack_from(f"{order}I", start, place + 4), 8
        elif kind not in _TYPES:
            return False
        elif kind in _LONG:
            (length,), head = struct.unpack_from(f"{order}I", start, place + 8), 12
        else:
            (length,), head = struct.unpack_from(f"{order}H", start, place + 6), 8
        if length > _LONGEST or length % 2:
            return False
        place, num_found = place + head + length, num_found + 1
    return num_found == _NUM_CHECKED
