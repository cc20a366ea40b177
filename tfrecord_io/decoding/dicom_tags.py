"""Reads the tags of DICOM files: the facts that a listing needs.

pydicom and its codecs are an extra, `pip install '.[dicom]'` in the clone. Numbers of sections are
those of the DICOM standard, part 3 (PS3.3 2025).
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import importlib.metadata
import io
import logging
import math
import warnings
import zlib
from typing import TYPE_CHECKING, Any

import numpy as np

from tfrecord_io.rejects import Reject

if TYPE_CHECKING:
    from pydicom import Dataset

#: The packages of the extra.
PACKAGES = (
    "pydicom", "imagecodecs", "pyjpegls", "pylibjpeg", "pylibjpeg-openjpeg", "pylibjpeg-rle",
)  # fmt: skip

#: Length of the beginning of a file, in which nearly every header ends.
HEADER_BYTES = 16 * 1024

#: The preamble and DICM, by which a file is recognised; its elements follow (PS3.10, section 7.1).
START_BYTES = 132

#: Transfer syntax of a file that is deflated as a whole.
DEFLATED = "1.2.840.10008.1.2.1.99"

# A deflated file that inflates to more is rejected as a decompression bomb.
_MAX_INFLATED_BYTES = 256 * 1024 * 1024

#: Photometric interpretations of grey pictures.
MONOCHROME = ("MONOCHROME1", "MONOCHROME2")

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
            "run pip install '.[dicom]' in the clone of this project"
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

    import_pydicom()
    from pydicom.filereader import read_partial

    try:
        check_inflated(start)
        tags = read_partial(io.BytesIO(start), is_past, specific_tags=[*_HEADER_TAGS.values()])
        return _header(tags) if ended else None
    except Exception:
        # A damaged file raises almost anything. The decoder rejects it, with a reason.
        return None


def _header(tags: Dataset) -> Header:
    def text(name: str) -> str:
        return str(tags.get(name) or "").strip()

    patient = text("PatientID")
    is_grey = tags.get("PhotometricInterpretation") in MONOCHROME
    has_levels = tags.get("VOILUTSequence") or window_of(tags) or is_plain(tags, tags)
    return Header(
        num_frames=int(tags.get("NumberOfFrames") or 1),
        patient=_hashed(f"{text('IssuerOfPatientID')}\0{patient}") if patient else None,
        study=_hashed(text("StudyInstanceUID")),
        series=_hashed(text("SeriesInstanceUID")),
        modality=text("Modality") or None,
        laterality=text("ImageLaterality") or text("Laterality") or None,
        device=text("ManufacturerModelName") or None,
        needs_range=is_grey and not has_levels,
    )


def _hashed(identifier: str) -> str | None:
    """Returns a hash of an identifier, or None of an empty one."""
    return hashlib.sha256(identifier.encode()).hexdigest()[:16] if identifier else None


def check_inflated(data: bytes) -> None:
    """Refuses a deflated file that pydicom would inflate to more memory than there may be."""
    # A fast path: parsing takes longer than this test.
    if DEFLATED.encode() not in data:
        return
    from pydicom.filereader import read_dataset

    file = io.BytesIO(data)
    file.seek(START_BYTES)
    # Only group 2 says how the rest is encoded.
    meta = read_dataset(file, False, True, stop_when=lambda tag, *_: tag >> 16 != 2)
    if meta.get("TransferSyntaxUID") == DEFLATED:
        inflater = zlib.decompressobj(-zlib.MAX_WBITS)
        inflater.decompress(file.read(), _MAX_INFLATED_BYTES)
        if inflater.unconsumed_tail:
            raise Reject("file_too_large", f"more than {_MAX_INFLATED_BYTES:,} bytes, inflated")


def is_plain(dataset: Dataset, rescaling: Dataset) -> bool:
    """Returns whether stored values are grey levels already: eight bits that are not rescaled."""
    slope = rescaling.get("RescaleSlope")
    is_rescaled = rescaling.get("ModalityLUTSequence") or slope not in (None, 1)
    return (dataset.get("BitsStored") or 16) <= 8 and not is_rescaled


def window_of(view: Dataset) -> tuple[float, float] | None:
    """Returns center and width of the first window of a file or frame, None if it has none."""
    center, width = (_first(view.get(name)) for name in ("WindowCenter", "WindowWidth"))
    if center is None or width is None or not (math.isfinite(center + width) and width > 0):
        return None
    return center, width


def _first(value: Any) -> float | None:
    """Returns the first of the values of an element, None without one."""
    values = np.atleast_1d([] if value is None else value)
    return float(values[0]) if len(values) else None


@functools.cache
def import_pydicom() -> Any:
    """Imports pydicom and silences it: it quotes odd values, and names of people are among them."""
    codec_versions()
    import pydicom

    pydicom.config.settings.reading_validation_mode = pydicom.config.IGNORE
    logging.getLogger("pydicom").setLevel(logging.CRITICAL + 1)
    warnings.filterwarnings("ignore", module="pydicom")
    return pydicom
