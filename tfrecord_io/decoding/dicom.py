"""Decides what of a DICOM file is a picture; `pydicom.pixels` decodes, windows and colours it.

Ours are: which frame, which window (the first), what becomes a reject, and one codec for each
transfer syntax, so that every machine accepts the same files.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import importlib.metadata
import io
import logging
import re
import struct
import unicodedata
import warnings
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

import numpy as np
from PIL import Image

from tfrecord_io.decoding.formats import Picture
from tfrecord_io.decoding.rejects import Reject, as_rejects, check_size

if TYPE_CHECKING:
    from pydicom import Dataset

#: The packages of the extra.
PACKAGES = (
    "pydicom", "imagecodecs", "pyjpegls", "pylibjpeg", "pylibjpeg-openjpeg", "pylibjpeg-rle",
)  # fmt: skip

# Transfer syntax of a file that is deflated as a whole: it may inflate to any size.
_DEFLATED = b"1.2.840.10008.1.2.1.99"

# What `read_header` reads, in the order of a file.
_HEADER_TAGS = (
    "ImageType", "SOPClassUID", "Modality", "ManufacturerModelName", "PatientID",
    "IssuerOfPatientID", "StudyInstanceUID", "SeriesInstanceUID", "Laterality", "ImageLaterality",
    "NumberOfFrames", "BurnedInAnnotation",
)  # fmt: skip

# pydicom's plugin for each transfer syntax; "" for those that are not compressed. Its own plugins
# for lossless JPEG, and JPEG of more than eight bits, are not free, or end the process on a damaged
# file, as GDCM does; so this module is one, see `decode_jpeg`.
_OURS = "tfrecord_io"
_PLUGINS = {
    f"1.2.840.10008.1.2{ending}": plugin
    for plugin, endings in {
        "": ("", ".1", ".2"),  # the last one is big-endian
        "pillow": (".4.50", ".4.51"),  # JPEG baseline, and extended if it has eight bits
        _OURS: (".4.57", ".4.70"),  # lossless JPEG
        "pyjpegls": (".4.80", ".4.81"),
        "pylibjpeg": (".4.90", ".4.91", ".4.201", ".4.202", ".4.203", ".5"),  # JPEG 2000, RLE
    }.items()
    for ending in endings
}
_JPEG_EXTENDED, _RLE = "1.2.840.10008.1.2.4.51", "1.2.840.10008.1.2.5"
_LOSSY = {f"1.2.840.10008.1.2.4.{ending}" for ending in ("50", "51", "81", "91", "203")}

# The markers of a frame's header, which has its sides: those of JPEG (ISO/IEC 10918-1, B.1.1.3)
# and that of JPEG-LS (14495-1, C.1.1). Behind a segment or coded pixels comes another marker.
_SIDES = {*range(0xC0, 0xD0), 0xF7} - {0xC4, 0xC8, 0xCC}
_MARKER = re.compile(rb"\xff[\xc0-\xcf\xd8-\xfe]")
_SIZES_OF_JPEG_2000, _END = b"\xff\x4f\xff\x51", b"\xff\xd9"
_JOINED_FRAMES = re.compile(rb"\xff\xd9\0*\xff[\xd8\x4f]\xff")
_END_BYTES = 64  # in which the end marker of a frame must be, as writers pad frames

# What an image must say of its pixels, of which the rest is pydicom's to check (PS3.3, C.7.6.3).
_NEEDED = ("Rows", "Columns", "BitsStored", "PhotometricInterpretation", "PixelRepresentation")

# The functional groups whose attributes a frame may have for itself (PS3.3, C.7.6.16).
_GROUPS = ("PixelMeasuresSequence", "PixelValueTransformationSequence", "FrameVOILUTSequence")

# What says the height and the width of a pixel, the best first.
_SPACINGS = "PixelSpacing ImagerPixelSpacing NominalScannedPixelSpacing PixelAspectRatio"

# Siemens' own class of spectra and protocols, beside the pictures of a study; in no dictionary.
_SIEMENS_RAW_DATA = "1.3.12.2.1107.5.9.1"

# Values of ImageType of pictures that only accompany others: of slides, and of CT (PS3.3, C.8.12.4
# and C.8.2.1).
_COMPANIONS = ("LABEL", "OVERVIEW", "THUMBNAIL", "LOCALIZER")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Header:
    """The facts about a file that a listing needs; None if the file does not have one.

    Attributes:
        patient: a hash of the patient's identity; `study` and `series` are hashes of their UIDs.
        laterality: `L`, `R` or `B`.
        device: the model's name.
        kind: `enhanced_sr` and the like if it is not a picture of a patient; else empty.
        is_annotated: whether the file says that text is burned into its pixels.
    """

    num_frames: int = 1
    patient: str | None = None
    study: str | None = None
    series: str | None = None
    modality: str | None = None
    laterality: str | None = None
    device: str | None = None
    kind: str = ""
    is_annotated: bool = False


class Frame(NamedTuple):
    """A decoded frame: its stored values, what they mean, and its tags.

    `pixels` are [rows, columns] or [rows, columns, 3]; `interpretation` is the photometric one
    after decoding; `tags` are those of the file, with the frame's own in place.
    """

    pixels: np.ndarray
    interpretation: str
    tags: Dataset


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
    from pydicom.pixels import get_decoder

    pydicom.config.settings.reading_validation_mode = pydicom.config.IGNORE
    logging.getLogger("pydicom").setLevel(logging.CRITICAL + 1)
    warnings.filterwarnings("ignore", module="pydicom")
    for syntax, plugin in _PLUGINS.items():
        decoder = get_decoder(syntax)
        is_ours = plugin == _OURS or syntax == _JPEG_EXTENDED
        if is_ours and _OURS not in decoder.available_plugins:
            decoder.add_plugin(_OURS, (__name__, decode_jpeg.__name__))
    return pydicom


def is_available(uid: str) -> bool:
    """Tells pydicom that `decode_jpeg` can be called."""
    return True


def decode_jpeg(frame: bytes, runner: Any) -> bytes:
    """Decodes lossless JPEG, or JPEG of 12 bits, as a plugin of pydicom."""
    import imagecodecs

    space = runner.photometric_interpretation if runner.samples_per_pixel == 3 else None
    if space not in (None, "RGB"):
        raise ValueError(f"{space} in lossless JPEG is not supported")
    pixels = imagecodecs.jpeg8_decode(frame, colorspace=space, outcolorspace=space)
    runner.set_option("bits_allocated", 8 * pixels.itemsize)
    return pixels.tobytes()


def read_header(start: bytes) -> Header | None:
    """Reads the header of a file; None if it is damaged, deflated or not all in these bytes."""
    import_pydicom()
    from pydicom.datadict import tag_for_keyword
    from pydicom.filereader import read_partial
    from pydicom.uid import UID

    if _DEFLATED in start:
        return None
    wanted = [tag_for_keyword(name) or 0 for name in _HEADER_TAGS]
    file = io.BytesIO(start)
    # A damaged file raises almost anything. The decoder rejects it, with a reason.
    with contextlib.suppress(Exception):
        tags = read_partial(file, lambda tag, *_: tag > wanted[-1], specific_tags=wanted)
        texts = {name: str(tags.get(name) or "").strip() for name in _HEADER_TAGS}
        patient, issuer = texts["PatientID"], texts["IssuerOfPatientID"]
        study, series = texts["StudyInstanceUID"], texts["SeriesInstanceUID"]
        types = tags.get("ImageType") or ()
        kind = next((f"{name.lower()}_image" for name in _COMPANIONS if name in types), "")
        sop_class = texts["SOPClassUID"]
        name = "Raw Data Storage" if sop_class == _SIEMENS_RAW_DATA else UID(sop_class).name
        # Segmentations have pixels, but of masks of other pictures. Unknown classes may be any.
        if name != sop_class and not re.search("Image|US Volume", name):
            kind = re.sub(r"\W+", "_", name.removesuffix(" Storage").lower())
        header = Header(
            num_frames=int(tags.get("NumberOfFrames") or 1),
            patient=patient_code(patient, issuer) if patient else None,
            study=_hashed(study) if study else None,
            series=_hashed(series) if series else None,
            modality=texts["Modality"] or None,
            laterality=texts["ImageLaterality"] or texts["Laterality"] or None,
            device=texts["ManufacturerModelName"] or None,
            kind=kind,
            is_annotated=texts["BurnedInAnnotation"].upper() == "YES",
        )
        # pydicom stops before the first tag behind the header, or at the end of the bytes.
        if file.tell() < len(start) or header.kind:
            return header
    return None


def patient_code(patient: str, issuer: str = "") -> str:
    """Returns the patient of a dataset for a PatientID, after its issuer if the file names one."""
    code = _hashed(f"\0{patient}")
    return f"{_hashed(issuer)}/{code}" if issuer else code


def _hashed(identifier: str) -> str:
    content = unicodedata.normalize("NFC", identifier).encode()
    return hashlib.sha256(content).hexdigest()[:16]


def read_frame(file: BinaryIO, number: int) -> Frame:
    """Decodes one frame of a file, numbered from 1; 0 if the file has only one.

    Of the file only the tags and this frame are read.

    Raises:
        Reject: if the frame is damaged, or not a picture of up to 16 bits.
        OSError: if the file cannot be read.
        ModuleNotFoundError: if pydicom or a codec is not installed.
    """
    pydicom = import_pydicom()
    with as_rejects():
        if _DEFLATED in file.read(1024):
            raise Reject("unsupported_syntax", "DICOM that is deflated as a whole")
        file.seek(0)
        tags = pydicom.dcmread(file, stop_before_pixels=True)
        if missing := [name for name in _NEEDED if name not in tags]:
            raise Reject("no_pixels", f"a DICOM file without {', '.join(missing)}")
        num_frames, bits = int(tags.get("NumberOfFrames") or 1), tags.BitsStored
        if number == 0 and num_frames != 1:
            raise Reject("multiple_frames", f"DICOM with {num_frames:,} frames")
        if bits > 16:
            raise Reject("too_many_bits", f"DICOM of {bits} bits")
        if (high_bit := tags.get("HighBit", bits - 1)) not in (None, bits - 1):
            found = f"DICOM of {bits} bits with high bit {high_bit}, expected {bits - 1}"
            raise Reject("unsupported_mode", found)
        check_size(tags.Columns, tags.Rows)
        index = max(number, 1) - 1
        pixels, interpretation = _decode(file, tags, index, num_frames)
    shared = (tags.get("SharedFunctionalGroupsSequence") or [])[:1]
    own = (tags.get("PerFrameFunctionalGroupsSequence") or [])[index : index + 1]
    for group in (*shared, *own):
        for item in (item for name in _GROUPS for item in group.get(name) or ()):
            tags.update(item)
    return Frame(pixels, interpretation, tags)


def _decode(file: BinaryIO, tags: Dataset, index: int, num_frames: int) -> tuple[np.ndarray, str]:
    """Returns the values of a frame and what they mean, of a file that is read up to its pixels."""
    from pydicom.encaps import get_frame, parse_basic_offsets
    from pydicom.pixels import get_decoder
    from pydicom.pixels.utils import as_pixel_options, get_expected_length
    from pydicom.uid import UID

    syntax = UID(tags.file_meta.get("TransferSyntaxUID", ""))
    if syntax not in _PLUGINS:
        name = f"in transfer syntax {syntax.name}" if syntax else "without a transfer syntax"
        raise Reject("unsupported_syntax", f"DICOM {name}")
    order = "<" if syntax.is_little_endian else ">"
    element = file.read(8)
    if len(element) < 8 or struct.unpack(f"{order}HH", element[:4]) != (0x7FE0, 0x0010):
        raise Reject("no_pixels", "a DICOM file without integer pixels")
    # Some writers leave it out where the syntax has it.
    has_kind = not syntax.is_implicit_VR and element[4:6] in (b"OB", b"OW", b"UN")
    (length,) = struct.unpack(f"{order}I", file.read(4) if has_kind else element[4:])
    options = as_pixel_options(tags, pixel_keyword="PixelData")
    if has_kind:
        options["pixel_vr"] = element[4:6].decode()
    plugin, start, frame = _PLUGINS[syntax], file.tell(), b""
    num_bytes = get_expected_length(tags) // num_frames
    is_odd = not plugin and length >= (num_frames + 1) * num_bytes
    if plugin:
        offsets = parse_basic_offsets(file)
        file.seek(start)
        is_odd = len(offsets) not in (0, num_frames)
        places = options.get("extended_offsets")
        frame = get_frame(file, index, number_of_frames=num_frames, extended_offsets=places)
        file.seek(start)
    if is_odd or (syntax != _RLE and _JOINED_FRAMES.search(frame)):
        raise Reject("multiple_frames", f"DICOM with more than the {num_frames:,} frames it names")
    if plugin and syntax != _RLE:
        if _END not in frame[-_END_BYTES:]:
            raise Reject("truncated", "the compressed frame of the DICOM is cut off")
        # A codec takes memory for as many pixels as the frame itself says.
        if _sides_of(frame) != (tags.Rows, tags.Columns):
            raise Reject("undecodable", "the compressed frame has other sides than the file says")
        # The pixels of these codecs are interleaved, whatever the file says.
        options["planar_configuration"] = 0
    if syntax == _JPEG_EXTENDED and tags.BitsStored > 8:
        plugin = _OURS
    try:
        pixels, facts = get_decoder(syntax).as_array(
            file, index=index, decoding_plugin=plugin, **options
        )
    except BaseException as error:
        # pylibjpeg-rle is written in Rust, whose panics are not an Exception.
        if type(error).__module__ == "pyo3_runtime":
            raise Reject("undecodable", "the decoder panicked") from None
        if not plugin and file.seek(start + (index + 1) * num_bytes - 1) and not file.read(1):
            raise Reject("truncated", f"the file ends before its frame {index + 1:,}") from None
        raise
    lowest = -(1 << tags.BitsStored - 1) if tags.PixelRepresentation else 0
    span = (1 << tags.BitsStored) - 1
    if syntax in _LOSSY:
        pixels = np.clip(pixels, lowest, lowest + span)
    elif tags.BitsStored < tags.BitsAllocated:
        # Unused high bits say nothing; pydicom leaves them in some syntaxes.
        pixels = ((pixels.astype(np.int32) - lowest) & span) + lowest
    return pixels, str(facts["photometric_interpretation"])


def _sides_of(frame: bytes) -> tuple[int, ...]:
    """Returns (height, width) of a frame compressed by a form of JPEG."""
    if not frame.startswith(b"\xff\xd8"):
        # JPEG 2000 (15444-1, A.4.1 and A.5.1), maybe with boxes of JP2 before the codestream.
        place = frame.index(_SIZES_OF_JPEG_2000)
        return struct.unpack_from(">II", frame, place + 8)[::-1]
    place = 2
    while match := _MARKER.search(frame, place):
        place = match.start()
        if frame[place + 1] in _SIDES:
            return struct.unpack_from(">HH", frame, place + 5)
        place += 2 + int.from_bytes(frame[place + 2 : place + 4], "big")
    raise Reject("undecodable", "the compressed frame does not say its sides")


def show(frame: Frame, window: tuple[float, float] | None) -> Picture:
    """Returns a frame as a picture of mode L or RGB, in which 0 is black.

    Grey is windowed: by the window given, else by the first one of the file (its VOI LUT comes
    before). Without any, values of up to eight bits are taken as they are, and of deeper ones the
    lowest value of the frame is black and the highest white. The picture's mode says the
    photometric interpretation with the number of stored bits, such as `MONOCHROME2;12`.

    Raises:
        Reject: if the colours are of another kind, or pydicom cannot apply the window.
    """
    from pydicom.pixels import apply_color_lut, apply_modality_lut, apply_voi_lut, apply_windowing

    pixels, interpretation, tags = frame
    bits = tags.BitsStored
    mode = f"{tags.PhotometricInterpretation};{bits}"
    with as_rejects():
        if interpretation in ("MONOCHROME1", "MONOCHROME2"):
            # A table of every value that can be stored: there are fewer of them than pixels.
            lowest = -(1 << tags.BitsStored - 1) if tags.PixelRepresentation else 0
            stored = np.arange(lowest, lowest + (1 << bits))
            rescale = tags.get("RescaleSlope", 1), tags.get("RescaleIntercept", 0)
            values = stored if None in rescale else apply_modality_lut(stored, tags)
            if None in rescale or not np.isfinite(values).all():
                found = "the rescale slope or intercept of the DICOM is not a number"
                raise Reject("undecodable", found)
            voi = (tags.get("VOILUTSequence") or [None])[0]
            if window:
                tags.WindowCenter, tags.WindowWidth = window
            tags.VOILUTFunction = "LINEAR" if window else tags.get("VOILUTFunction") or "LINEAR"
            if not window and voi and voi.get("LUTDescriptor") and voi.get("LUTData"):
                num_entries, first, depth = voi.LUTDescriptor
                # pydicom keeps places in the type of the entries, where larger ones wrap round.
                voi.LUTDescriptor = [num_entries, first, 16]
                last = first + (num_entries or 1 << 16) - 1
                shown = apply_voi_lut(np.rint(values).clip(first, last).astype(np.int64), tags)
                voi.LUTDescriptor, ends = [num_entries, first, depth], (0, (1 << depth) - 1)
            elif None not in (tags.get("WindowCenter"), tags.get("WindowWidth")):
                shown = apply_windowing(values, tags)
                ends = apply_windowing(np.array([-np.inf, np.inf]), tags)
            else:
                shown = values
                used = [0, -1] if bits <= 8 else [pixels.min() - lowest, pixels.max() - lowest]
                ends = values[used].min(), values[used].max()
            shares = np.clip((shown - ends[0]) / ((ends[1] - ends[0]) or 1), 0, 1)
            if tags.PhotometricInterpretation == "MONOCHROME1":
                shares = 1 - shares
            shown = np.rint(255 * shares).astype(np.uint8)[pixels - lowest]
        elif interpretation == "RGB":
            shown = pixels >> max(bits - 8, 0)
        elif interpretation == "PALETTE COLOR":
            num_entries, first, bits = tags.RedPaletteColorLookupTableDescriptor
            places = pixels.clip(first, first + (num_entries or 1 << 16) - 1)
            shown = apply_color_lut(places, tags)[:, :, :3] >> max(bits - 8, 0)
        else:
            raise Reject("unsupported_mode", f"DICOM of {mode}")
    aspect = 1.0  # the height of a pixel divided by its width (C.7.6.3.1.7)
    for name in _SPACINGS.split():
        with contextlib.suppress(TypeError, ValueError, ZeroDivisionError):
            height, width = map(float, tags.get(name))
            if 0.01 <= height / width <= 100:
                aspect = height / width
                break
    image = Image.fromarray(np.ascontiguousarray(shown, np.uint8))
    return Picture(image, mode, "DICOM", pixel_aspect=aspect)
