"""Reads DICOM files: the facts that a listing needs, and the picture of one frame.

pydicom and its codecs are an extra, `pip install 'scan-tfrecords[dicom]'`. Each transfer syntax has
one codec, whatever else is installed, so that the same files are accepted everywhere.

Numbers of sections are those of the DICOM standard, part 3 (PS3.3 2025).
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import importlib.metadata
import io
import logging
import math
import re
import struct
import warnings
import zlib
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
from PIL import Image

from tfrecord_io.rejects import Reject, check_size

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pydicom import DataElement, Dataset

#: The packages of the extra.
PACKAGES = (
    "pydicom", "imagecodecs", "pyjpegls", "pylibjpeg", "pylibjpeg-openjpeg", "pylibjpeg-rle",
)  # fmt: skip

#: Length of the beginning of a file, in which nearly every header ends.
HEADER_BYTES = 16 * 1024

# Decodes lossless JPEG, and JPEG of more than eight bits. pydicom's own plugins for them are not
# free, or end the process on a damaged file, as GDCM does.
_IMAGECODECS = "imagecodecs"

_JPEG_LS = "pyjpegls"

# pydicom's plugin for each transfer syntax; "" for those that are not compressed.
_PLUGINS = {
    "1.2.840.10008.1.2": "",
    "1.2.840.10008.1.2.1": "",
    "1.2.840.10008.1.2.1.99": "",  # the whole file is deflated
    "1.2.840.10008.1.2.2": "",  # big endian
    "1.2.840.10008.1.2.4.50": "pillow",  # JPEG baseline
    "1.2.840.10008.1.2.4.51": "pillow",  # JPEG extended, if it has eight bits
    "1.2.840.10008.1.2.4.57": _IMAGECODECS,  # lossless JPEG
    "1.2.840.10008.1.2.4.70": _IMAGECODECS,
    "1.2.840.10008.1.2.4.80": _JPEG_LS,
    "1.2.840.10008.1.2.4.81": _JPEG_LS,
    "1.2.840.10008.1.2.4.90": "pylibjpeg",  # JPEG 2000
    "1.2.840.10008.1.2.4.91": "pylibjpeg",
    "1.2.840.10008.1.2.4.201": "pylibjpeg",  # HTJ2K
    "1.2.840.10008.1.2.4.202": "pylibjpeg",
    "1.2.840.10008.1.2.4.203": "pylibjpeg",
    "1.2.840.10008.1.2.5": "pylibjpeg",  # RLE
}
_DEFLATED = "1.2.840.10008.1.2.1.99"
_JPEG_EXTENDED = "1.2.840.10008.1.2.4.51"

#: The preamble and DICM, by which a file is recognised; its elements follow (PS3.10, section 7.1).
START_BYTES = 132

# A deflated file that inflates to more is rejected as a decompression bomb.
_MAX_INFLATED_BYTES = 256 * 1024 * 1024

# The markers of a frame's header, which has its sides: those of JPEG (ISO/IEC 10918-1, B.1.1.3)
# and that of JPEG-LS (14495-1, C.1.1).
_FRAME_MARKERS = {*range(0xC0, 0xD0), 0xF7} - {0xC4, 0xC8, 0xCC}

# How JPEG and JPEG-LS begin and end.
_JPEG_START, _JPEG_END = b"\xff\xd8", b"\xff\xd9"

# How a codestream of JPEG 2000 begins (15444-1, A.4.1 and A.5.1).
_JPEG_2000_START = b"\xff\x4f\xff\x51"

_RLE = "1.2.840.10008.1.2.5"

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

#: How frames without a window become grey levels, see `read_frame`.
FRAME_RANGE = "frame_range"

_MONOCHROME = ("MONOCHROME1", "MONOCHROME2")

# What `read_header` reads, in the order of a file.
_HEADER_TAGS = {
    "Modality": 0x00080060,
    "ManufacturerModelName": 0x00081090,
    "PatientID": 0x00100020,
    "IssuerOfPatientID": 0x00100021,
    "StudyInstanceUID": 0x0020000D,
    "SeriesInstanceUID": 0x0020000E,
    "Laterality": 0x00200060,
    "ImageLaterality": 0x00200062,
    "PhotometricInterpretation": 0x00280004,
    "NumberOfFrames": 0x00280008,
    "BitsStored": 0x00280101,
    "WindowCenter": 0x00281050,
    "WindowWidth": 0x00281051,
    "RescaleSlope": 0x00281053,
    "ModalityLUTSequence": 0x00283000,
    "VOILUTSequence": 0x00283010,
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Header:
    """The facts about a file that a listing needs.

    Attributes:
        num_frames: number of frames; 1 if the file does not say.
        patient: a hash of the patient's identity; this and the following facts are None if the
            file does not have them.
        study: a hash of the study's UID, which says whose examination it is.
        series: a hash of the series' UID.
        modality: such as `CT`.
        laterality: `L`, `R` or `B`.
        device: the model's name.
        needs_range: whether grey levels of uint8 depend on the range of the frame's values,
            because the file names no window, or only for each frame.
    """

    num_frames: int = 1
    patient: str | None = None
    study: str | None = None
    series: str | None = None
    modality: str | None = None
    laterality: str | None = None
    device: str | None = None
    needs_range: bool = False


def is_dicom(start: bytes) -> bool:
    """Tells by the first `START_BYTES` whether a file is DICOM."""
    return start[START_BYTES - 4 : START_BYTES] == b"DICM"


def codec_versions() -> dict[str, str]:
    """Returns the versions of the packages that decide the pixels.

    Raises:
        ModuleNotFoundError: if one of them is not installed, with what to do.
    """
    try:
        return {package: importlib.metadata.version(package) for package in PACKAGES}
    except importlib.metadata.PackageNotFoundError as error:
        raise ModuleNotFoundError(
            f"DICOM files are read with {', '.join(PACKAGES)}, but {error.name} is not installed: "
            "pip install 'scan-tfrecords[dicom]'"
        ) from None


def read_header(start: bytes) -> Header | None:
    """Reads the header of a file.

    Args:
        start: the file, or as much of it as is at hand.

    Returns:
        the header; None if it is damaged, or does not end in these bytes.
    """
    ended = False

    def is_past(tag: Any, *_: object) -> bool:
        nonlocal ended
        ended |= tag > _HEADER_TAGS["VOILUTSequence"]
        return ended

    _pydicom()
    from pydicom.filereader import read_partial

    try:
        _check_inflated(start)
        found = read_partial(io.BytesIO(start), is_past, specific_tags=[*_HEADER_TAGS.values()])
        if not ended:
            return None
        num_frames = int(found.get("NumberOfFrames") or 1)
        is_grey = found.get("PhotometricInterpretation") in _MONOCHROME
        has_levels = found.get("VOILUTSequence") or _window_of(found) or _is_plain(found, found)
        values = {name: str(found.get(name) or "").strip() for name in _HEADER_TAGS}
    except Exception:
        # A damaged file raises almost anything. The decoder rejects it, with a reason.
        return None
    patient, issuer = values["PatientID"], values["IssuerOfPatientID"]
    return Header(
        num_frames=num_frames,
        patient=_hashed(f"{issuer}\0{patient}") if patient else None,
        study=_hashed(values["StudyInstanceUID"]),
        series=_hashed(values["SeriesInstanceUID"]),
        modality=values["Modality"] or None,
        laterality=values["ImageLaterality"] or values["Laterality"] or None,
        device=values["ManufacturerModelName"] or None,
        needs_range=is_grey and not has_levels,
    )


def _hashed(identifier: str) -> str | None:
    """Returns a hash of an identifier, or None of an empty one."""
    return hashlib.sha256(identifier.encode()).hexdigest()[:16] if identifier else None


def cut_frame(file: BinaryIO, frame: int) -> Dataset | None:
    """Reads the tags and one frame of a file with several, without reading the other frames.

    Args:
        file: the file, at its beginning.
        frame: number of the frame, from 1.

    Returns:
        the tags, as if this frame were the only one; None if it cannot be found, because the file
        cannot be read, or is deflated, damaged, without pixels, or not DICOM.

    Raises:
        Reject: if it holds other frames than it says.
    """
    try:
        dataset = _pydicom().dcmread(file, stop_before_pixels=True)
        pixels = _pixels_of(file, dataset, frame - 1)
    except Reject:
        raise
    except Exception:
        return None  # reading the whole file gives the reason
    if pixels is None:
        return None
    dataset.NumberOfFrames = 1
    dataset.add(pixels)
    # These tables locate the frames of the original file.
    for name in ("ExtendedOffsetTable", "ExtendedOffsetTableLengths"):
        dataset.pop(name, None)
    return dataset


def _pixels_of(file: BinaryIO, dataset: Dataset, index: int) -> DataElement | None:
    """Returns the pixels of one frame.

    Args:
        file: positioned at the element of the pixels.
        dataset: the tags before them.
        index: number of the frame, from 0.
    """
    from pydicom import DataElement
    from pydicom.encaps import encapsulate, get_frame

    syntax = dataset.file_meta.TransferSyntaxUID
    if syntax == _DEFLATED or syntax not in _PLUGINS or dataset.BitsAllocated % 8:
        return None
    if not syntax.is_little_endian and dataset.BitsAllocated == 8:
        return None  # two frames may share a word, and the bytes of a word are swapped
    order = "<" if syntax.is_little_endian else ">"
    tag = struct.unpack(f"{order}HH", file.read(4))
    kind = "OW" if syntax.is_implicit_VR else file.read(4)[:2].decode()
    (length,) = struct.unpack(f"{order}I", file.read(4))
    if tag != (0x7FE0, 0x0010):
        return None
    num_frames = int(dataset.NumberOfFrames)
    if syntax.is_encapsulated:
        _check_frames(file, num_frames)
        frame = get_frame(file, index, number_of_frames=num_frames)
        element = DataElement(tag, kind, encapsulate([frame], has_bot=False))
        element.is_undefined_length = True
        return element
    num_bytes = _frame_bytes(dataset, num_frames)
    expected = num_bytes * num_frames
    start = file.tell() + index * num_bytes
    # pydicom looks into files of another length: the tags may be wrong.
    if length not in (expected, expected + expected % 2) or index >= num_frames:
        return None
    if start + num_bytes > file.seek(0, io.SEEK_END):
        raise Reject("truncated", f"the file ends before its frame {index + 1:,}")
    file.seek(start)
    return DataElement(tag, kind, file.read(num_bytes))


def read_frame(
    data: bytes | Dataset,
    frame: int,
    *,
    dtype: str,
    window: tuple[float, float] | None,
    no_window: str | None = FRAME_RANGE,
) -> tuple[Image.Image, str]:
    """Decodes one frame.

    Args:
        data: the whole file, or what `cut_frame` returned for this frame.
        frame: number of the frame, from 1; 0 for the only frame of a file.
        dtype: uint16 for the stored values, from the lowest that the file can store; uint8 for the
            grey levels of the window. A picture of eight stored bits has mode L for both.
        window: center and width of the grey levels of uint8; None for the window that the file
            names.
        no_window: `FRAME_RANGE` to show a frame without a window from its lowest value to its
            highest, the padding aside, except that eight stored bits which are not rescaled keep
            their levels; None to reject it.

    Returns:
        a picture of mode L, RGB or I;16, and the photometric interpretation with the number of
        stored bits, such as `MONOCHROME2;12`.

    Raises:
        Reject: if the frame cannot be converted without loss of information other than by the
            window. A damaged frame may raise any other exception.
        ModuleNotFoundError: if pydicom or a codec is not installed.
    """
    if isinstance(data, bytes):
        _check_inflated(data)
        file = io.BytesIO(data)
        cut = cut_frame(file, frame) if frame else None
        file.seek(0)
        data = cut or _pydicom().dcmread(file)
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
    stored = f"{dataset.PhotometricInterpretation};{dataset.BitsStored}"
    if dataset.BitsStored > (16 if dataset.SamplesPerPixel == 1 else 8):
        raise Reject("too_many_bits", f"DICOM of {stored}")
    high_bit = dataset.get("HighBit")
    if high_bit not in (None, dataset.BitsStored - 1):
        raise Reject(
            "unsupported_mode",
            f"DICOM of {stored} with high bit {high_bit}, expected {dataset.BitsStored - 1}",
        )
    index = max(frame, 1) - 1
    pixels, interpretation = _decode(dataset, index if num_frames > 1 else 0)
    if interpretation in _MONOCHROME:
        return _grey(pixels, dataset, index, dtype, window, no_window), stored
    if interpretation == "PALETTE COLOR":
        pixels = _coloured(pixels, dataset)
    elif interpretation != "RGB":
        raise Reject("unsupported_mode", f"DICOM of {stored}")
    return Image.fromarray(np.ascontiguousarray(pixels, np.uint8)), stored


@functools.cache
def _pydicom() -> Any:
    """Imports pydicom and silences it: it quotes odd values, and names of people are among them."""
    codec_versions()
    import pydicom

    pydicom.config.settings.reading_validation_mode = pydicom.config.IGNORE
    logging.getLogger("pydicom").setLevel(logging.CRITICAL + 1)
    warnings.filterwarnings("ignore", module="pydicom")
    return pydicom


def _decode(dataset: Dataset, index: int) -> tuple[np.ndarray, str]:
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
    num_frames = int(dataset.get("NumberOfFrames") or 1)
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
        if plugin == _JPEG_LS and frame.rfind(_JPEG_END) < 0:  # near the end, if it is there
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
    """Refuses compressed pixels of other frames than the file says, by their table and fragments.

    Some frames would be lost, or decoded as others.

    Args:
        pixels: a file at the beginning of the table of offsets; its position is kept.
        num_frames: number of frames.
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


def _check_inflated(data: bytes) -> None:
    """Refuses a deflated file that pydicom would inflate to more memory than there may be."""
    # A fast path: parsing takes longer than this test.
    if _DEFLATED.encode() not in data:
        return
    from pydicom.filereader import read_dataset

    file = io.BytesIO(data)
    file.seek(START_BYTES)
    # Only group 2 says how the rest is encoded.
    meta = read_dataset(file, False, True, stop_when=lambda tag, *_: tag >> 16 != 2)
    if meta.get("TransferSyntaxUID") == _DEFLATED:
        inflater = zlib.decompressobj(-zlib.MAX_WBITS)
        inflater.decompress(file.read(), _MAX_INFLATED_BYTES)
        if inflater.unconsumed_tail:
            raise Reject("file_too_large", f"more than {_MAX_INFLATED_BYTES:,} bytes, inflated")


def _sides_of(frame: bytes) -> tuple[int, ...]:
    """Returns (height, width) of a frame compressed by a form of JPEG."""
    if not frame.startswith(_JPEG_START):  # some writers put boxes of JP2 before the codestream
        return struct.unpack_from(">II", frame, frame.index(_JPEG_2000_START) + 8)[::-1]
    place = 2
    while (marker := frame[place + 1]) not in _FRAME_MARKERS:
        # Any number of bytes 0xFF may come before a marker (10918-1, B.1.1.2).
        is_fill = marker == 0xFF
        place += 1 if is_fill else 2 + int.from_bytes(frame[place + 2 : place + 4], "big")
    return struct.unpack_from(">HH", frame, place + 5)


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


def _grey(
    pixels: np.ndarray,
    dataset: Dataset,
    index: int,
    dtype: str,
    window: tuple[float, float] | None,
    no_window: str | None,
) -> Image.Image:
    """Turns stored values [rows, columns] into a picture of mode L or I;16 in which 0 is black."""
    bits = dataset.BitsStored
    lowest = -(1 << bits - 1) if dataset.PixelRepresentation else 0
    span = (1 << bits) - 1
    levels = pixels
    # Clipping copies the values, which takes longer than this comparison.
    if pixels.min() < lowest or pixels.max() > lowest + span:
        levels = np.clip(pixels, lowest, lowest + span)
    if lowest:
        levels = np.subtract(levels, lowest, dtype=np.int32)
    levels = levels.astype(np.uint16, copy=False)
    is_inverted = dataset.PhotometricInterpretation == "MONOCHROME1"
    if dtype == "uint16":
        levels = span - levels if is_inverted else levels
        # Mode L is spread over 16 bits like any other file of eight bits.
        return Image.fromarray(levels.astype(np.uint8) if bits == 8 else levels)
    # The modality transform, then the window, then the photometric interpretation (C.11.1), of each
    # value that can be stored: there are fewer of them than pixels.
    from pydicom.pixels import apply_modality_lut

    rescaling = _of_frame(dataset, index, "PixelValueTransformationSequence")
    stored = np.arange(lowest, lowest + span + 1)
    values = apply_modality_lut(stored, rescaling).astype(np.float64)
    if not np.isfinite(values).all() or values.min() == values.max():
        raise Reject("undecodable", "the rescale slope or intercept of the DICOM is not usable")
    view = _of_frame(dataset, index, "FrameVOILUTSequence")
    if window:
        shares = _windowed(values, *window, "LINEAR")
    elif view.get("VOILUTSequence"):
        item = view.VOILUTSequence[0]
        entries = _looked_up(np.rint(values), item.LUTDescriptor, item.LUTData, dataset)
        shares = np.clip(entries / ((1 << item.LUTDescriptor[2]) - 1), 0, 1)
    elif own := _window_of(view):
        shares = _windowed(values, *own, view.get("VOILUTFunction") or "LINEAR")
    else:
        shown = values if _is_plain(dataset, rescaling) else values[_used(levels, dataset, stored)]
        if shown is not values and no_window is None:
            raise Reject("no_window", "a DICOM file without a window, expected one; see --window")
        low, high = shown.min(), shown.max()
        shares = np.clip((values - low) / max(high - low, 1e-6), 0, 1)
    table = np.rint(255 * (1 - shares if is_inverted else shares)).astype(np.uint8)
    return Image.fromarray(table[levels])


def _is_plain(dataset: Dataset, rescaling: Dataset) -> bool:
    """Tells whether stored values are grey levels already: eight bits that are not rescaled."""
    slope = rescaling.get("RescaleSlope")
    is_rescaled = rescaling.get("ModalityLUTSequence") or slope not in (None, 1)
    return dataset.BitsStored <= 8 and not is_rescaled


def _window_of(view: Dataset) -> tuple[float, float] | None:
    """Returns center and width of the first window of a file or frame, None if it has none."""
    center, width = (_first(view.get(name)) for name in ("WindowCenter", "WindowWidth"))
    if center is None or width is None or not (math.isfinite(center + width) and width > 0):
        return None
    return center, width


def _used(levels: np.ndarray, dataset: Dataset, stored: np.ndarray) -> np.ndarray:
    """Tells of each value that can be stored whether a pixel has it, except those of padding.

    Args:
        levels: the pixels as places among these values.
        dataset: the file, which names the padding (C.7.5.1.1.2).
        stored: the values.
    """
    used = np.bincount(levels.ravel(), minlength=len(stored)) > 0
    padding = dataset.get("PixelPaddingValue")
    if padding is None:
        return used
    ends = padding, dataset.get("PixelPaddingRangeLimit", padding)
    outside = used & ((stored < min(ends)) | (stored > max(ends)))
    return outside if outside.any() else used


def _windowed(values: np.ndarray, center: float, width: float, function: str) -> np.ndarray:
    """Returns the place of each rescaled value, such as Hounsfield units, in a window: 0..1."""
    values = values - center
    if function == "SIGMOID":  # section C.11.2.1.3.1
        return 1 / (1 + np.exp(-4 * values / width))
    if function == "LINEAR":  # section C.11.2.1.2.1
        values, width = values + 0.5, max(width - 1, 1e-6)
    return np.clip(values / width + 0.5, 0, 1)


def _coloured(pixels: np.ndarray, dataset: Dataset) -> np.ndarray:
    """Returns the colours, uint8 [rows, columns, 3], of values of a palette."""
    num_entries, first, bits = dataset.RedPaletteColorLookupTableDescriptor
    if "RedPaletteColorLookupTableData" in dataset:
        channels = [
            _looked_up(
                pixels,
                dataset[f"{name}PaletteColorLookupTableDescriptor"].value,
                dataset[f"{name}PaletteColorLookupTableData"].value,
                dataset,
            )
            for name in ("Red", "Green", "Blue")
        ]
        colours = np.stack(channels, axis=-1)
    else:
        from pydicom.pixels import apply_color_lut

        # pydicom keeps an index in the type of the entries, where larger ones would wrap round.
        if bits == 8 and not 0 < num_entries <= 256:
            raise Reject("unsupported_mode", f"a segmented palette of {num_entries} 8-bit entries")
        within = np.clip(pixels.astype(np.int32), first, first + (num_entries or 1 << 16) - 1)
        colours = apply_color_lut(within, dataset)[..., :3]
    return (colours >> 8 if bits > 8 else np.minimum(colours, 255)).astype(np.uint8)


def _looked_up(
    values: np.ndarray, descriptor: Sequence[int], data: bytes | Sequence[int], dataset: Dataset
) -> np.ndarray:
    """Returns the entry of a lookup table for each value (C.11.2.1.1, C.7.6.3.1.5).

    Args:
        values: whole numbers; those beyond an end of the table have the entry of that end.
        descriptor: number of entries, or 0 for 65,536; the value of the first; bits of an entry.
        data: the entries, as bytes or as words. Entries of eight bits may share a word.
        dataset: the file, which says in which order a word has its bytes.
    """
    num_entries, first, bits = descriptor
    if not 8 <= bits <= 16:
        raise Reject("unsupported_mode", f"a DICOM lookup table of {bits} bits, expected 8 to 16")
    num_entries = num_entries or 1 << 16
    if isinstance(data, bytes):
        is_little = dataset.file_meta.TransferSyntaxUID.is_little_endian
        words = np.frombuffer(data, "<u2" if is_little else ">u2")
    else:
        words = np.atleast_1d(data)
    # The first of two entries that share a word is in its lower byte (PS3.5, 7.3).
    is_shared = bits == 8 and len(words) < num_entries
    table = words.astype("<u2").view(np.uint8) if is_shared else words
    return table[np.clip(values.astype(np.int64) - first, 0, num_entries - 1)]


def _first(value: Any) -> float | None:
    """Returns the first of the values of an element, None without one."""
    values = np.atleast_1d([] if value is None else value)
    return float(values[0]) if len(values) else None


def _of_frame(dataset: Dataset, index: int, name: str) -> Dataset:
    """Returns the dataset that has a frame's attributes of a functional group (C.7.6.16)."""
    for groups, place in (
        (dataset.get("PerFrameFunctionalGroupsSequence"), index),
        (dataset.get("SharedFunctionalGroupsSequence"), 0),
    ):
        if groups and len(groups) > place and groups[place].get(name):
            return groups[place][name][0]
    return dataset
