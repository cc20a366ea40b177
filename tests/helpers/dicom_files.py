"""Writes small DICOM files byte by byte (PS3.5, PS3.10), with no library that reads them.

Only another transfer syntax is written by pydicom and its codecs.
"""

import io
import struct
from collections.abc import Mapping, Sequence

import numpy as np
import pydicom

EXPLICIT_LITTLE_ENDIAN = "1.2.840.10008.1.2.1"

# Elements with four bytes of length (PS3.5, section 7.1.2).
_LONG = {"OB", "OW", "SQ", "UN", "UT"}

Value = str | int | bytes | list["Elements"] | list[bytes]
#: Values by (group, element, VR).
Elements = Mapping[tuple[int, int, str], Value]


def dicom_file(
    pixels: np.ndarray,
    elements: Elements | None = None,
    *,
    photometric: str = "MONOCHROME2",
    bits: int | None = None,
    syntax: str = EXPLICIT_LITTLE_ENDIAN,
    num_frames: int | str | None = None,
    compressed: Sequence[bytes] = (),
) -> bytes:
    """Returns a DICOM file.

    Args:
        pixels: integers of 8 or 16 bits, [height, width], [frames, height, width] or, of 8 bits,
            [height, width, 3].
        elements: further elements of the dataset, or other values of these.
        photometric: photometric interpretation.
        bits: stored bits; by default all of them.
        syntax: what the file says of its encoding, which is little-endian with explicit types.
        num_frames: what the file says, if not the truth.
        compressed: the frames as a codec of that syntax wrote them, instead of the pixels.
    """
    samples = 3 if photometric == "RGB" else 1
    height, width = pixels.shape[-3:-1] if samples == 3 else pixels.shape[-2:]
    allocated = 8 * pixels.dtype.itemsize
    dataset: dict[tuple[int, int, str], Value] = {
        (0x0008, 0x0016, "UI"): "1.2.840.10008.5.1.4.1.1.7",
        (0x0008, 0x0018, "UI"): "1.2.3.4",
        (0x0028, 0x0002, "US"): samples,
        (0x0028, 0x0004, "CS"): photometric,
        (0x0028, 0x0010, "US"): height,
        (0x0028, 0x0011, "US"): width,
        (0x0028, 0x0100, "US"): allocated,
        (0x0028, 0x0101, "US"): bits or allocated,
        (0x0028, 0x0102, "US"): (bits or allocated) - 1,
        (0x0028, 0x0103, "US"): int(pixels.dtype.kind == "i"),
        (0x7FE0, 0x0010, "OW"): pixels.astype(pixels.dtype.newbyteorder("<")).tobytes(),
    }
    if samples == 3:
        dataset[0x0028, 0x0006, "US"] = 0
    elif pixels.ndim == 3 or num_frames is not None:
        dataset[0x0028, 0x0008, "IS"] = str(num_frames or len(pixels))
    if compressed:
        del dataset[0x7FE0, 0x0010, "OW"]
        dataset[0x7FE0, 0x0010, "OB"] = [b"", *compressed]  # an empty table of offsets first
    meta = _encoded({(0x0002, 0x0010, "UI"): syntax})
    length = _encoded({(0x0002, 0x0000, "UL"): len(meta)})
    return bytes(128) + b"DICM" + length + meta + _encoded({**dataset, **(elements or {})})


def in_syntax(data: bytes, syntax: str) -> bytes:
    """Returns a file of `dicom_file` as pydicom compresses it."""
    dataset = pydicom.dcmread(io.BytesIO(data))
    dataset.compress(syntax)
    pydicom.dcmwrite(file := io.BytesIO(), dataset)
    return file.getvalue()


def _encoded(elements: Elements) -> bytes:
    encoded = b""
    for (group, number, kind), value in sorted(elements.items()):
        content = _content(kind, value)
        head = struct.pack("<HH2s", group, number, kind.encode())
        is_compressed = kind == "OB" and isinstance(value, list)  # of undefined length (A.4)
        num_bytes = 0xFFFFFFFF if is_compressed else len(content)
        length = struct.pack("<2xI" if kind in _LONG else "<H", num_bytes)
        end = struct.pack("<HHI", 0xFFFE, 0xE0DD, 0) if is_compressed else b""
        encoded += head + length + content + end
    return encoded


def _content(kind: str, value: Value) -> bytes:
    if isinstance(value, list):  # a sequence of items
        items = (
            item + b"\0" * (len(item) % 2) if isinstance(item, bytes) else _encoded(item)
            for item in value
        )
        return b"".join(struct.pack("<HHI", 0xFFFE, 0xE000, len(item)) + item for item in items)
    if isinstance(value, int):
        return struct.pack({"US": "<H", "SS": "<h", "UL": "<I"}[kind], value)
    content = value.encode() if isinstance(value, str) else value
    return content + (b"\0" if kind in ("UI", "OB", "OW") else b" ") * (len(content) % 2)
