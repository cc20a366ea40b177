"""Reads DICOM files: the facts that a listing needs, and one frame as a picture.

pydicom and its codecs are an extra, `pip install '.[dicom]'` in the clone. Each transfer syntax has
one codec, whatever else is installed, so that the same files are accepted everywhere. Numbers of
sections are those of the DICOM standard, part 3 (PS3.3 2025).
"""

from __future__ import annotations

import contextlib
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
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
from PIL import Image

from tfrecord_io.decoding.dicom_kinds import kind_without_pixels
from tfrecord_io.decoding.formats import Picture, jpeg_markers
from tfrecord_io.decoding.options import Preprocessing
from tfrecord_io.decoding.rejects import Reject, check_size
from tfrecord_io.terminal.spelling import appearance, one_form

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pydicom import Dataset

#: The packages of the extra.
PACKAGES = (
    "pydicom", "imagecodecs", "pyjpegls", "pylibjpeg", "pylibjpeg-openjpeg", "pylibjpeg-rle",
)  # fmt: skip

#: Transfer syntax of a file that is deflated as a whole, a reject: it may inflate to any size.
DEFLATED = b"1.2.840.10008.1.2.1.99"

#: Photometric interpretations of grey pictures.
MONOCHROME = ("MONOCHROME1", "MONOCHROME2")

# What `read_header` reads, in the order of a file.
_HEADER_TAGS = (
    "SOPClassUID", "Modality", "ManufacturerModelName", "PatientID", "IssuerOfPatientID",
    "StudyInstanceUID", "SeriesInstanceUID", "Laterality", "ImageLaterality",
    "NumberOfFrames",
)  # fmt: skip


# pydicom's plugin for each transfer syntax; "" for those that are not compressed. Its own plugins
# for lossless JPEG, and JPEG of more than eight bits, are not free, or end the process on a damaged
# file, as GDCM does.
_IMAGECODECS = "imagecodecs"
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


@dataclasses.dataclass(frozen=True, kw_only=True)
class Header:
    """The facts about a file that a listing needs; None if the file does not have one.

    Attributes:
        patient: a hash of the patient's identity; `study` and `series` are hashes of their UIDs.
        alike: a hash that is the same for identities that look alike, see `spelling.appearance`.
        laterality: `L`, `R` or `B`.
        device: the model's name.
        kind: what the file is if it is not a picture, see `dicom_kinds`; else empty.
    """

    num_frames: int = 1
    patient: str | None = None
    alike: str | None = None
    study: str | None = None
    series: str | None = None
    modality: str | None = None
    laterality: str | None = None
    device: str | None = None
    kind: str = ""


def is_dicom(start: bytes) -> bool:
    """Tells by the first 132 bytes of a file whether it is DICOM (PS3.10, 7.1)."""
    return start[128:132] == b"DICM"


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
            "run pip install '.[dicom]' in the clone of this project"
        ) from None


@functools.cache
def import_pydicom() -> Any:
    """Imports pydicom and silences it: it quotes odd values, and names of people are among them."""
    codec_versions()
    import pydicom

    pydicom.config.settings.reading_validation_mode = pydicom.config.IGNORE
    logging.getLogger("pydicom").setLevel(logging.CRITICAL + 1)
    warnings.filterwarnings("ignore", module="pydicom")
    return pydicom


def read_header(start: bytes) -> Header | None:
    """Reads the header of a file; None if it is damaged, deflated or not all in these bytes."""
    import_pydicom()
    from pydicom.datadict import tag_for_keyword
    from pydicom.filereader import read_partial

    if DEFLATED in start:
        return None
    wanted = [tag_for_keyword(name) or 0 for name in _HEADER_TAGS]
    file = io.BytesIO(start)
    try:
        tags = read_partial(file, lambda tag, *_: tag > wanted[-1], specific_tags=wanted)
        header = _header(tags)
        # pydicom stops before the first tag behind the header, or at the end of the bytes.
        return header if file.tell() < len(start) or header.kind else None
    except Exception:
        # A damaged file raises almost anything. The decoder rejects it, with a reason.
        return None


def patient_code(patient: str, issuer: str = "") -> str:
    """Returns what stands for a PatientID in a dataset, after its issuer if the file names one."""
    code = _hashed(f"\0{patient}")
    return f"{_hashed(issuer)}/{code}" if issuer else code


def _hashed(identifier: str) -> str:
    return hashlib.sha256(one_form(identifier).encode()).hexdigest()[:16]


def _header(tags: Dataset) -> Header:
    def text(name: str) -> str:
        return str(tags.get(name) or "").strip()

    patient, issuer = text("PatientID"), text("IssuerOfPatientID")
    study, series = map(text, ("StudyInstanceUID", "SeriesInstanceUID"))
    return Header(
        num_frames=int(tags.get("NumberOfFrames") or 1),
        patient=patient_code(patient, issuer) if patient else None,
        alike=patient_code(appearance(patient), appearance(issuer)) if patient else None,
        study=_hashed(study) if study else None,
        series=_hashed(series) if series else None,
        modality=text("Modality") or None,
        laterality=text("ImageLaterality") or text("Laterality") or None,
        device=text("ManufacturerModelName") or None,
        kind=kind_without_pixels(text("SOPClassUID")),
    )


def is_plain(dataset: Dataset, rescaling: Dataset) -> bool:
    """Returns whether stored values are grey levels already: eight bits that are not rescaled."""
    slope = rescaling.get("RescaleSlope")
    is_rescaled = table_of(rescaling, "ModalityLUTSequence") or slope not in (None, 1)
    return (dataset.get("BitsStored") or 16) <= 8 and not is_rescaled


def table_of(dataset: Dataset, name: str) -> Dataset | None:
    """Returns the first item of a sequence of lookup tables, or None if it lacks the table."""
    for item in (dataset.get(name) or ())[:1]:
        if item.get("LUTDescriptor") and item.get("LUTData"):
            return item
    return None


def window_of(view: Dataset) -> tuple[float, float] | None:
    """Returns center and width of the first window of a file or frame, None if it has none."""
    values = [np.atleast_1d(view.get(name, [])) for name in ("WindowCenter", "WindowWidth")]
    if not all(len(some) and some[0] is not None for some in values):
        return None
    center, width = (float(some[0]) for some in values)
    return (center, width) if math.isfinite(center + width) and width > 0 else None


def of_frame(dataset: Dataset, index: int, name: str) -> Dataset:
    """Returns the dataset that has a frame's attributes of a functional group (C.7.6.16)."""
    for groups, place in (
        (dataset.get("PerFrameFunctionalGroupsSequence"), index),
        (dataset.get("SharedFunctionalGroupsSequence"), 0),
    ):
        if groups and len(groups) > place and groups[place].get(name):
            return groups[place][name][0]
    return dataset


def pixel_aspect(dataset: Dataset, index: int) -> float:
    """Returns the height of a pixel divided by its width (C.7.6.3.1.7), or 1 if it is unknown."""
    measures = of_frame(dataset, index, "PixelMeasuresSequence")
    sides = ("ImagerPixelSpacing", "NominalScannedPixelSpacing", "PixelAspectRatio")
    for tags, name in ((measures, "PixelSpacing"), *((dataset, name) for name in sides)):
        with contextlib.suppress(TypeError, ValueError, ZeroDivisionError):
            height, width = map(float, tags.get(name))
            if 0.01 <= height / width <= 100:
                return height / width
    return 1.0


def cut_frame(file: BinaryIO, frame: int) -> Dataset | None:
    """Reads the tags and one frame of a file, numbered from 1, without reading the other frames.

    Returns:
        the tags, as if this frame were the only one; None if it cannot be found.

    Raises:
        Reject: if it holds other frames than it says.
    """
    try:
        dataset = import_pydicom().dcmread(file, stop_before_pixels=True)
        return _with_frame(dataset, file, frame - 1)
    except Reject:
        raise
    except Exception:
        return None  # reading the whole file gives the reason


def _with_frame(dataset: Dataset, file: BinaryIO, index: int) -> Dataset | None:
    """Adds the pixels of one frame to the tags of a file, which is read up to its pixels."""
    from pydicom import DataElement
    from pydicom.encaps import encapsulate, get_frame

    syntax, num_frames = dataset.file_meta.TransferSyntaxUID, int(dataset.NumberOfFrames)
    order, least_bits = ("<", 8) if syntax.is_little_endian else (">", 16)
    tag = struct.unpack(f"{order}HH", file.read(4))
    # In big-endian words, two frames of eight bits may share a word.
    if syntax not in _PLUGINS or dataset.BitsAllocated % least_bits or tag != (0x7FE0, 0x0010):
        return None
    kind = "OW" if syntax.is_implicit_VR else file.read(4)[:2].decode()
    (length,) = struct.unpack(f"{order}I", file.read(4))
    if syntax.is_encapsulated:
        _check_frames(file, num_frames)
        content = get_frame(file, index, number_of_frames=num_frames)
        pixels = encapsulate([content], has_bot=False)
    else:
        num_bytes = _frame_bytes(dataset, num_frames)
        expected = num_bytes * num_frames
        start = file.tell() + index * num_bytes
        # pydicom looks into files of another length: the tags may be wrong.
        if length not in (expected, expected + expected % 2) or index >= num_frames:
            return None
        if start + num_bytes > file.seek(0, io.SEEK_END):
            raise Reject("truncated", f"the file ends before its frame {index + 1:,}")
        file.seek(start)
        pixels = file.read(num_bytes)
    dataset.NumberOfFrames = 1
    dataset.add(DataElement(tag, kind, pixels))
    # These tables locate the frames of the original file.
    for name in ("ExtendedOffsetTable", "ExtendedOffsetTableLengths"):
        dataset.pop(name, None)
    return dataset


def read_frame(data: bytes | Dataset, frame: int, preprocessing: Preprocessing) -> Picture:
    """Decodes one frame of a file, or of the result of `cut_frame`; 0 if the file has only one.

    Returns:
        a picture of mode L or RGB, whose `mode` says the photometric interpretation with the
        number of stored bits, such as `MONOCHROME2;12`.

    Raises:
        Reject: if the frame cannot be converted without loss of information other than by the
            window. A damaged frame may raise any other exception.
        ModuleNotFoundError: if pydicom or a codec is not installed.
    """
    pydicom = import_pydicom()
    if isinstance(data, bytes) and DEFLATED in data:
        raise Reject("unsupported_syntax", "DICOM that is deflated as a whole")
    dataset = pydicom.dcmread(io.BytesIO(data)) if isinstance(data, bytes) else data
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
        image = _grey_picture(pixels, dataset, index, preprocessing)
    elif interpretation in ("PALETTE COLOR", "RGB"):
        if interpretation != "RGB":
            pixels = _palette_colours(pixels, dataset)
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
    if not frame.startswith(b"\xff\xd8"):
        # JPEG 2000 (15444-1, A.4.1 and A.5.1), maybe with boxes of JP2 before the codestream.
        return struct.unpack_from(">II", frame, frame.index(b"\xff\x4f\xff\x51") + 8)[::-1]
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


def _grey_picture(
    pixels: np.ndarray, dataset: Dataset, index: int, preprocessing: Preprocessing
) -> Image.Image:
    """Turns stored values [rows, columns] into a picture of mode L in which 0 is black."""
    bits, is_inverted = dataset.BitsStored, dataset.PhotometricInterpretation == "MONOCHROME1"
    lowest = -(1 << bits - 1) if dataset.PixelRepresentation else 0
    span = (1 << bits) - 1
    # Clipping copies the values, which takes longer than this comparison.
    if pixels.min() < lowest or pixels.max() > lowest + span:
        pixels = np.clip(pixels, lowest, lowest + span)
    if lowest:
        pixels = np.subtract(pixels, lowest, dtype=np.int32)
    levels = pixels.astype(np.uint16, copy=False)
    # A table of each value that can be stored: there are fewer of them than pixels. The levels are
    # places in it.
    stored = np.arange(lowest, lowest + span + 1)
    shares = _shown(stored, levels, dataset, index, preprocessing)
    table = np.rint(255 * (1 - shares if is_inverted else shares)).astype(np.uint8)
    return Image.fromarray(table[levels])


def _used(stored: np.ndarray, levels: np.ndarray, dataset: Dataset) -> np.ndarray:
    """Tells of each value that can be stored if a pixel has it, padding (C.7.5.1.1.2) aside."""
    used = np.bincount(levels.ravel(), minlength=len(stored)) > 0
    padding = dataset.get("PixelPaddingValue")
    if padding is None:
        return used
    ends = padding, dataset.get("PixelPaddingRangeLimit", padding)
    outside = used & ((stored < min(ends)) | (stored > max(ends)))
    return outside if outside.any() else used


def _shown(
    stored: np.ndarray, levels: np.ndarray, dataset: Dataset, index: int, options: Preprocessing
) -> np.ndarray:
    """Returns the grey level of each stored value, 0..1, before the photometric interpretation.

    The modality transform comes first, then the window (C.11.1).
    """
    rescaling = of_frame(dataset, index, "PixelValueTransformationSequence")
    view = of_frame(dataset, index, "FrameVOILUTSequence")
    values = _rescaled(stored, rescaling, dataset)
    if options.window:
        return _windowed(values, *options.window, "LINEAR")
    if table := table_of(view, "VOILUTSequence"):
        entries = _looked_up(np.rint(values), table.LUTDescriptor, table.LUTData, dataset)
        return np.clip(entries / ((1 << table.LUTDescriptor[2]) - 1), 0, 1)
    if own := window_of(view):
        return _windowed(values, *own, view.get("VOILUTFunction") or "LINEAR")
    shown = values
    if not is_plain(dataset, rescaling):
        shown = values[_used(stored, levels, dataset)]
    low, high = shown.min(), shown.max()
    return np.clip((values - low) / max(high - low, 1e-6), 0, 1)


def _rescaled(stored: np.ndarray, rescaling: Dataset, dataset: Dataset) -> np.ndarray:
    """Returns the values after the modality transform, such as Hounsfield units (C.11.1)."""
    slope, intercept = rescaling.get("RescaleSlope"), rescaling.get("RescaleIntercept")
    values = stored.astype(np.float64)
    if table := table_of(rescaling, "ModalityLUTSequence"):
        values = _looked_up(stored, table.LUTDescriptor, table.LUTData, dataset).astype(np.float64)
    elif None not in (slope, intercept):
        values = values * float(slope) + float(intercept)
    if not np.isfinite(values).all() or values.min() == values.max():
        raise Reject("undecodable", "the rescale slope or intercept of the DICOM is not usable")
    return values


def _windowed(values: np.ndarray, center: float, width: float, function: str) -> np.ndarray:
    """Returns the place of each rescaled value, such as Hounsfield units, in a window: 0..1."""
    values = values - center
    if function == "SIGMOID":  # section C.11.2.1.3.1
        return 1 / (1 + np.exp(-4 * values / width))
    if function == "LINEAR":  # section C.11.2.1.2.1
        values, width = values + 0.5, max(width - 1, 1e-6)
    return np.clip(values / width + 0.5, 0, 1)


def _palette_colours(pixels: np.ndarray, dataset: Dataset) -> np.ndarray:
    """Returns the colours, uint8 [rows, columns, 3], of values of a palette."""
    from pydicom.pixels import apply_color_lut

    num_entries, first, bits = dataset.RedPaletteColorLookupTableDescriptor
    num_entries = num_entries or 1 << 16
    # pydicom keeps an index in the type of the entries, where larger ones would wrap round.
    if bits == 8 and num_entries > 256:
        raise Reject("unsupported_mode", f"a palette of {num_entries:,} entries of 8 bits")
    table = apply_color_lut(np.arange(first, first + num_entries)[np.newaxis], dataset)[0, :, :3]
    # Some writers put 0 to 255 into entries of 16 bits, as in palettes of TIFF.
    table = table >> 8 if bits > 8 and table.max() > 255 else table
    return table[np.clip(pixels.astype(np.int32) - first, 0, num_entries - 1)].astype(np.uint8)


def _looked_up(
    values: np.ndarray, descriptor: Sequence[int], data: bytes | Sequence[int], dataset: Dataset
) -> np.ndarray:
    """Returns the entry of a lookup table for each whole number (C.11.2.1.1, C.7.6.3.1.5).

    The descriptor is the number of entries, or 0 for 65,536; the value of the first; and the bits
    of an entry. Values beyond an end of the table have the entry of that end.
    """
    num_entries, first, bits = descriptor
    if not 8 <= bits <= 16:
        raise Reject("unsupported_mode", f"a DICOM lookup table of {bits} bits, expected 8 to 16")
    num_entries = num_entries or 1 << 16
    order = "<u2" if dataset.file_meta.TransferSyntaxUID.is_little_endian else ">u2"
    words = np.frombuffer(data, order) if isinstance(data, bytes) else np.atleast_1d(data)
    # The first of two entries that share a word is in its lower byte (PS3.5, 7.3).
    is_shared = bits == 8 and len(words) < num_entries
    table = words.astype("<u2").view(np.uint8) if is_shared else words
    return table[np.clip(values.astype(np.int64) - first, 0, num_entries - 1)]
