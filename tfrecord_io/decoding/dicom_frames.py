"""Reads one frame of a DICOM file as a picture.

Each transfer syntax has one codec, whatever else is installed, so that the same files are accepted
everywhere. Numbers of sections are those of the DICOM standard, part 3 (PS3.3 2025).
"""

from __future__ import annotations

import io
import re
import struct
from typing import TYPE_CHECKING, BinaryIO

import numpy as np
from PIL import Image

from tfrecord_io.decoding.complete import jpeg_markers
from tfrecord_io.decoding.dicom_levels import grey_picture, palette_colours
from tfrecord_io.decoding.dicom_tags import DEFLATED, MONOCHROME, import_pydicom, pixel_aspect
from tfrecord_io.decoding.formats import Picture
from tfrecord_io.decoding.options import Preprocessing
from tfrecord_io.rejects import Reject, check_size

if TYPE_CHECKING:
    from pydicom import Dataset

# Decodes lossless JPEG, and JPEG of more than eight bits. pydicom's own plugins for them are not
# free, or end the process on a damaged file, as GDCM does.
_IMAGECODECS = "imagecodecs"

# pydicom's plugin for each transfer syntax; "" for those that are not compressed.
_PLUGINS = {
    f"1.2.840.10008.1.2{ending}": plugin
    for plugin, endings in {
        "": ("", ".1", ".2"),  # the last one is big-endian
        "pillow": (".4.50", ".4.51"),  # JPEG baseline, and extended if it has eight bits
        _IMAGECODECS: (".4.57", ".4.70"),  # lossless JPEG
        "pyjpegls": (".4.80", ".4.81"),
        "pylibjpeg": (".4.90", ".4.91", ".4.201", ".4.202", ".4.203", ".5"),  # JPEG 2000, RLE
    }.items()
    for ending in endings
}
_JPEG_EXTENDED, _RLE = "1.2.840.10008.1.2.4.51", "1.2.840.10008.1.2.5"

# The markers of a frame's header, which has its sides: those of JPEG (ISO/IEC 10918-1, B.1.1.3)
# and that of JPEG-LS (14495-1, C.1.1).
_FRAME_MARKERS = {*range(0xC0, 0xD0), 0xF7} - {0xC4, 0xC8, 0xCC}

# How a codestream of JPEG 2000 begins (15444-1, A.4.1 and A.5.1).
_JPEG_2000_START = b"\xff\x4f\xff\x51"

# What an image must say of its pixels (C.7.6.3).
_NEEDED = (
    "Rows", "Columns", "SamplesPerPixel", "PhotometricInterpretation", "BitsAllocated",
    "BitsStored", "PixelRepresentation",
)  # fmt: skip

# How a frame begins in each codec: JPEG, JPEG 2000 with and without boxes, RLE (PS3.5, G.5).
_FRAME_START = re.compile(
    rb"\xff\xd8\xff|\xff\x4f\xff\x51|\0\0\0\x0cjP|[\x01-\x0f]\0\0\0\x40\0\0\0"
)
_JOINED_FRAMES = re.compile(rb"\xff\xd9\0*(?:\xff\xd8\xff|\xff\x4f\xff\x51|\0\0\0\x0cjP)")


def cut_frame(file: BinaryIO, frame: int) -> Dataset | None:
    """Reads the tags and one frame, numbered from 1, without reading the other frames.

    Args:
        file: a file of several frames, at its beginning.
        frame: the number.

    Returns:
        the tags, as if this frame were the only one; None if it cannot be found, because the file
        cannot be read, or is damaged, without pixels, or not DICOM.

    Raises:
        Reject: if it holds other frames than it says.
    """
    try:
        dataset = import_pydicom().dcmread(file, stop_before_pixels=True)
        is_found = _add_pixels(file, dataset, frame - 1)
    except Reject:
        raise
    except Exception:
        return None  # reading the whole file gives the reason
    return dataset if is_found else None


def _add_pixels(file: BinaryIO, dataset: Dataset, index: int) -> bool:
    """Adds the pixels of one frame to the tags before them, behind which the file is."""
    from pydicom import DataElement
    from pydicom.encaps import encapsulate, get_frame

    syntax, num_frames = dataset.file_meta.TransferSyntaxUID, int(dataset.NumberOfFrames)
    # In big-endian words, two frames of eight bits may share a word.
    least_bits = 8 if syntax.is_little_endian else 16
    if syntax not in _PLUGINS or dataset.BitsAllocated % least_bits:
        return False
    order = "<" if syntax.is_little_endian else ">"
    tag = struct.unpack(f"{order}HH", file.read(4))
    kind = "OW" if syntax.is_implicit_VR else file.read(4)[:2].decode()
    (length,) = struct.unpack(f"{order}I", file.read(4))
    if tag != (0x7FE0, 0x0010):
        return False
    if syntax.is_encapsulated:
        _check_frames(file, num_frames)
        content = get_frame(file, index, number_of_frames=num_frames)
        pixels = DataElement(tag, kind, encapsulate([content], has_bot=False))
        pixels.is_undefined_length = True
    else:
        num_bytes = _frame_bytes(dataset, num_frames)
        expected = num_bytes * num_frames
        start = file.tell() + index * num_bytes
        # pydicom looks into files of another length: the tags may be wrong.
        if length not in (expected, expected + expected % 2) or index >= num_frames:
            return False
        if start + num_bytes > file.seek(0, io.SEEK_END):
            raise Reject("truncated", f"the file ends before its frame {index + 1:,}")
        file.seek(start)
        pixels = DataElement(tag, kind, file.read(num_bytes))
    dataset.NumberOfFrames = 1
    dataset.add(pixels)
    # These tables locate the frames of the original file.
    for name in ("ExtendedOffsetTable", "ExtendedOffsetTableLengths"):
        dataset.pop(name, None)
    return True


def read_frame(data: bytes | Dataset, frame: int, preprocessing: Preprocessing) -> Picture:
    """Decodes one frame.

    Args:
        data: the whole file, or what `cut_frame` returned for this frame.
        frame: number of the frame, from 1; 0 for the only frame of a file.
        preprocessing: which values become which grey levels.

    Returns:
        a picture of mode L, RGB or I;16, whose `mode` says the photometric interpretation with the
        number of stored bits, such as `MONOCHROME2;12`.

    Raises:
        Reject: if the frame cannot be converted without loss of information other than by the
            window. A damaged frame may raise any other exception.
        ModuleNotFoundError: if pydicom or a codec is not installed.
    """
    if isinstance(data, bytes):
        pydicom = import_pydicom()
        if DEFLATED in data:
            raise Reject("unsupported_syntax", "DICOM that is deflated as a whole")
        file = io.BytesIO(data)
        cut = cut_frame(file, frame) if frame else None
        file.seek(0)
        data = cut or pydicom.dcmread(file)
    dataset = data
    if "PixelData" not in dataset:
        raise Reject("no_pixels", "a DICOM file without integer pixels")
    missing = [name for name in _NEEDED if name not in dataset]
    if missing:
        raise Reject("missing_tag", f"a DICOM file without {', '.join(missing)}")
    num_frames = int(dataset.get("NumberOfFrames") or 1)
    if frame == 0 and num_frames != 1:
        raise Reject("multiple_frames", f"DICOM with {num_frames:,} frames")
    check_size(dataset.Columns, dataset.Rows)
    bits = dataset.BitsStored
    stored = f"{dataset.PhotometricInterpretation};{bits}"
    if bits > (16 if dataset.SamplesPerPixel == 1 else 8):
        raise Reject("too_many_bits", f"DICOM of {stored}")
    if (high_bit := dataset.get("HighBit", bits - 1)) not in (None, bits - 1):
        found = f"DICOM of {stored} with high bit {high_bit}, expected {bits - 1}"
        raise Reject("unsupported_mode", found)
    index = max(frame, 1) - 1
    pixels, interpretation = _decode(dataset, index if num_frames > 1 else 0, num_frames)
    if interpretation in MONOCHROME:
        image = grey_picture(pixels, dataset, index, preprocessing)
    elif interpretation in ("PALETTE COLOR", "RGB"):
        if interpretation != "RGB":
            pixels = palette_colours(pixels, dataset)
        image = Image.fromarray(np.ascontiguousarray(pixels, np.uint8))
    else:
        raise Reject("unsupported_mode", f"DICOM of {stored}")
    return Picture(image, stored, "DICOM", pixel_aspect=pixel_aspect(dataset, index))


def _decode(dataset: Dataset, index: int, num_frames: int) -> tuple[np.ndarray, str]:
    """Returns the values of a frame, [rows, columns] or RGB, and what they mean."""
    from pydicom.encaps import get_frame
    from pydicom.pixels import get_decoder
    from pydicom.uid import UID

    syntax = dataset.file_meta.get("TransferSyntaxUID")
    if syntax not in _PLUGINS:
        name = f"in transfer syntax {UID(syntax).name}" if syntax else "without a transfer syntax"
        raise Reject("unsupported_syntax", f"DICOM {name}")
    plugin = _PLUGINS[syntax]
    if syntax == _JPEG_EXTENDED and dataset.BitsStored > 8:
        plugin = _IMAGECODECS
    if plugin:
        _check_frames(io.BytesIO(dataset.PixelData), num_frames)
    elif len(dataset.PixelData) >= (num_frames + 1) * _frame_bytes(dataset, num_frames) > 0:
        raise Reject("multiple_frames", f"DICOM with pixels of more than {num_frames:,} frames")
    if plugin and syntax != _RLE:
        frame = get_frame(dataset.PixelData, index, number_of_frames=num_frames)
        if _JOINED_FRAMES.search(frame):
            raise Reject("multiple_frames", "a DICOM frame of several pictures")
        # A codec takes memory for as many pixels as the frame itself says.
        if _sides_of(frame) != (dataset.Rows, dataset.Columns):
            raise Reject("undecodable", "the compressed frame has other sides than the file says")
        # pyjpegls reports this only after it has decoded every pixel, which can take seconds.
        if plugin == "pyjpegls" and b"\xff\xd9" not in frame:
            raise Reject("truncated", "the JPEG-LS frame is cut off")
        if plugin == _IMAGECODECS:
            return _decode_jpeg(frame, dataset), dataset.PhotometricInterpretation
    decoder = get_decoder(syntax)
    try:
        pixels, facts = decoder.as_array(dataset, index=index, decoding_plugin=plugin)
    except BaseException as error:
        # pylibjpeg-rle is written in Rust, whose panics are not an Exception.
        if type(error).__module__ != "pyo3_runtime":
            raise
        raise Reject("undecodable", "the decoder panicked") from None
    return pixels, str(facts["photometric_interpretation"])


def _frame_bytes(dataset: Dataset, num_frames: int) -> int:
    """Returns the size of a frame that is not compressed, in bytes."""
    from pydicom.pixels.utils import get_expected_length

    return get_expected_length(dataset) // num_frames


def _check_frames(pixels: BinaryIO, num_frames: int) -> None:
    """Refuses compressed pixels of other frames than the file says: some would be lost or swapped.

    The file is at the table of offsets, and stays there.
    """
    from pydicom.encaps import parse_basic_offsets, parse_fragments

    start = pixels.tell()
    offsets = parse_basic_offsets(pixels)
    if offsets and (len(offsets) != num_frames or offsets != sorted(set(offsets))):
        raise Reject(
            "multiple_frames" if num_frames == 1 else "undecodable",
            f"DICOM of {num_frames:,} frames with a table of offsets that does not fit them",
        )
    # A frame may be in several fragments. Behind the last offset only one frame may begin.
    pixels.seek(pixels.tell() + (offsets[-1] if offsets else 0))
    num_begun = 0
    for place in parse_fragments(pixels)[1]:
        pixels.seek(place + 8)
        num_begun += bool(_FRAME_START.match(pixels.read(8)))
    pixels.seek(start)
    if num_begun > (1 if offsets else num_frames):
        raise Reject("multiple_frames", f"DICOM with more than the {num_frames:,} frames it names")


def _sides_of(frame: bytes) -> tuple[int, ...]:
    """Returns (height, width) of a frame compressed by a form of JPEG."""
    if not frame.startswith(b"\xff\xd8"):  # some writers put boxes of JP2 before the codestream
        return struct.unpack_from(">II", frame, frame.index(_JPEG_2000_START) + 8)[::-1]
    places = (place for marker, place in jpeg_markers(frame) if marker in _FRAME_MARKERS)
    return struct.unpack_from(">HH", frame, next(places) + 5)


def _decode_jpeg(frame: bytes, dataset: Dataset) -> np.ndarray:
    """Returns the values of a frame of lossless JPEG, or of JPEG of 12 bits."""
    import imagecodecs

    space = dataset.PhotometricInterpretation if dataset.SamplesPerPixel == 3 else None
    if space not in (None, "RGB"):
        raise Reject("unsupported_mode", f"DICOM of {space} in lossless JPEG")
    pixels: np.ndarray = imagecodecs.jpeg8_decode(frame, colorspace=space, outcolorspace=space)
    if dataset.PixelRepresentation:
        shift = 8 * pixels.itemsize - dataset.BitsStored
        pixels = (pixels << shift).view(f"i{pixels.itemsize}") >> shift
    return pixels
