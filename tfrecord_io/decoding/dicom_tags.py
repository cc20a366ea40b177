"""Reads the tags of DICOM files: the facts that a listing needs.

pydicom and its codecs are an extra, `pip install '.[dicom]'` in the clone. Numbers of sections are
those of the DICOM standard, part 3 (PS3.3 2025).
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
import warnings
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from pydicom import Dataset

#: The packages of the extra.
PACKAGES = (
    "pydicom", "imagecodecs", "pyjpegls", "pylibjpeg", "pylibjpeg-openjpeg", "pylibjpeg-rle",
)  # fmt: skip

#: Transfer syntax of a file that is deflated as a whole, which may inflate to any size. Files that
#: name it are rejects, and are not given to pydicom.
DEFLATED = b"1.2.840.10008.1.2.1.99"

#: Photometric interpretations of grey pictures.
MONOCHROME = ("MONOCHROME1", "MONOCHROME2")

#: The unit of values that have no physical one: their share of the range that the bits can store.
SHARE = "share of white"

# Units of files that name them for each frame, beyond the tags that `read_header` reads, by SOP
# class: enhanced CT, MR and PET, and those converted from single frames (PS3.4, B.5).
_UNITS_OF_FRAMES = {
    f"1.2.840.10008.5.1.4.1.1.{number}": unit
    for number, unit in (
        ("2.1", "HU"), ("2.2", "HU"), ("4.1", "US"), ("4.4", "US"), ("128.1", "US"), ("130", "US")
    )
}  # fmt: skip
_UNIT = re.compile(r"[A-Z][A-Z0-9_]{0,15}")

# What `read_header` reads, in the order of a file.
_HEADER_TAGS = (
    "SOPClassUID", "Modality", "ManufacturerModelName", "PatientID", "IssuerOfPatientID",
    "StudyInstanceUID", "SeriesInstanceUID", "Laterality", "ImageLaterality",
    "PhotometricInterpretation", "NumberOfFrames", "BitsStored", "WindowCenter", "WindowWidth",
    "RescaleIntercept", "RescaleSlope", "RescaleType", "ModalityLUTSequence", "VOILUTSequence",
)  # fmt: skip


@dataclasses.dataclass(frozen=True, kw_only=True)
class Header:
    """The facts about a file that a listing needs; None if the file does not have one.

    Attributes:
        patient: a hash of the patient's identity; `study` and `series` are hashes of their UIDs.
        laterality: `L`, `R` or `B`.
        device: the model's name.
        needs_range: whether grey levels of uint8 depend on the range of the frame's values,
            because the file names no window, or only for each frame.
        unit: of the values, see `unit_of`; empty if all of 8 or 16 bits is in use, which is stored
            in the same way with and without a formula.
    """

    num_frames: int = 1
    patient: str | None = None
    study: str | None = None
    series: str | None = None
    modality: str | None = None
    laterality: str | None = None
    device: str | None = None
    needs_range: bool = False
    unit: str = ""


def is_dicom(start: bytes) -> bool:
    """Tells by the first 132 bytes of a file whether it is DICOM (PS3.10, section 7.1)."""
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
    """Reads the header of a file, or of as much of it as is at hand.

    Returns None if it is damaged or deflated, or does not end in these bytes.
    """
    import_pydicom()
    from pydicom.datadict import tag_for_keyword
    from pydicom.filereader import read_partial

    if DEFLATED in start:
        return None
    wanted = [tag_for_keyword(name) or 0 for name in _HEADER_TAGS]
    file = io.BytesIO(start)
    try:
        tags = read_partial(file, lambda tag, *_: tag > wanted[-1], specific_tags=wanted)
        # pydicom stops before the first tag behind the header, or at the end of the bytes.
        return _header(tags) if file.tell() < len(start) else None
    except Exception:
        # A damaged file raises almost anything. The decoder rejects it, with a reason.
        return None


def _header(tags: Dataset) -> Header:
    def text(name: str) -> str:
        return str(tags.get(name) or "").strip()

    def hashed(identifier: str) -> str | None:
        return hashlib.sha256(identifier.encode()).hexdigest()[:16] if identifier else None

    patient = text("PatientID")
    is_grey = tags.get("PhotometricInterpretation") in MONOCHROME
    unit = _UNITS_OF_FRAMES.get(str(tags.get("SOPClassUID")), unit_of(tags, tags))
    has_levels = tags.get("VOILUTSequence") or window_of(tags) or is_plain(tags, tags)
    return Header(
        num_frames=int(tags.get("NumberOfFrames") or 1),
        patient=hashed(f"{text('IssuerOfPatientID')}\0{patient}") if patient else None,
        study=hashed(text("StudyInstanceUID")),
        series=hashed(text("SeriesInstanceUID")),
        modality=text("Modality") or None,
        laterality=text("ImageLaterality") or text("Laterality") or None,
        device=text("ManufacturerModelName") or None,
        needs_range=is_grey and not has_levels,
        unit=unit if is_grey and (unit != SHARE or tags.get("BitsStored") not in (8, 16)) else "",
    )


def is_plain(dataset: Dataset, rescaling: Dataset) -> bool:
    """Returns whether stored values are grey levels already: eight bits that are not rescaled."""
    slope = rescaling.get("RescaleSlope")
    is_rescaled = rescaling.get("ModalityLUTSequence") or slope not in (None, 1)
    return (dataset.get("BitsStored") or 16) <= 8 and not is_rescaled


def unit_of(dataset: Dataset, rescaling: Dataset) -> str:
    """Returns the unit of the values after the modality transform (C.11.1.1.2), such as `HU`.

    It is `US` if the file does not specify it, and `SHARE` if nothing is transformed. What has the
    transform is the file, or an item of its functional groups.
    """
    scale = rescaling.get("RescaleSlope"), rescaling.get("RescaleIntercept")
    if table := rescaling.get("ModalityLUTSequence"):
        named = table[0].get("ModalityLUTType")
    elif None in scale:
        return SHARE
    else:
        named = rescaling.get("RescaleType")
    unit = str(named or ("HU" if dataset.get("Modality") == "CT" else "US"))
    # Others are the text of a stranger, which could name a person.
    unit = unit if _UNIT.fullmatch(unit) else "US"
    return SHARE if unit == "US" and not table and scale == (1, 0) else unit


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
    """Returns the height of a pixel of a frame divided by its width (C.7.6.3.1.7).

    It is 1 if the file does not say, or says what no device has.
    """
    measures = of_frame(dataset, index, "PixelMeasuresSequence")
    sides = ("ImagerPixelSpacing", "NominalScannedPixelSpacing", "PixelAspectRatio")
    for tags, name in ((measures, "PixelSpacing"), *((dataset, name) for name in sides)):
        with contextlib.suppress(TypeError, ValueError, ZeroDivisionError):
            height, width = map(float, tags.get(name))
            if 0.01 <= height / width <= 100:
                return height / width
    return 1.0
