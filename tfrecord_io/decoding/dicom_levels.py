"""Turns the stored values of DICOM frames into grey levels and colours.

Numbers of sections are those of the DICOM standard, part 3 (PS3.3 2025).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from PIL import Image

from tfrecord_io.decoding.dicom_tags import SHARE, is_plain, of_frame, unit_of, window_of
from tfrecord_io.decoding.options import Physical, Preprocessing
from tfrecord_io.rejects import Reject

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pydicom import Dataset


def grey_picture(
    pixels: np.ndarray, dataset: Dataset, index: int, preprocessing: Preprocessing
) -> Image.Image:
    """Turns stored values [rows, columns] into a picture of mode L or I;16 in which 0 is black."""
    bits = dataset.BitsStored
    lowest = -(1 << bits - 1) if dataset.PixelRepresentation else 0
    span = (1 << bits) - 1
    # Clipping copies the values, which takes longer than this comparison.
    if pixels.min() < lowest or pixels.max() > lowest + span:
        pixels = np.clip(pixels, lowest, lowest + span)
    if lowest:
        pixels = np.subtract(pixels, lowest, dtype=np.int32)
    levels = pixels.astype(np.uint16, copy=False)
    if preprocessing.dtype == "uint16" and not preprocessing.physical:
        levels = span - levels if _is_inverted(dataset) else levels
        # Mode L is spread over 16 bits like any other file of eight bits.
        return Image.fromarray(levels.astype(np.uint8) if bits == 8 else levels)
    # A table of each value that can be stored: there are fewer of them than pixels.
    stored = np.arange(lowest, lowest + span + 1)
    if preprocessing.physical:
        table = _numbers(stored, levels, dataset, index, preprocessing.physical)
    else:
        table = _shown(stored, levels, dataset, index, preprocessing)
    return Image.fromarray(table[levels])


def _is_inverted(dataset: Dataset) -> bool:
    return dataset.PhotometricInterpretation == "MONOCHROME1"


def _used(stored: np.ndarray, levels: np.ndarray, dataset: Dataset) -> np.ndarray:
    """Tells of each value that can be stored whether a pixel has it, padding (C.7.5.1.1.2) aside.

    The levels are the pixels as places among the stored values.
    """
    used = np.bincount(levels.ravel(), minlength=len(stored)) > 0
    padding = dataset.get("PixelPaddingValue")
    if padding is None:
        return used
    ends = padding, dataset.get("PixelPaddingRangeLimit", padding)
    outside = used & ((stored < min(ends)) | (stored > max(ends)))
    return outside if outside.any() else used


def _shown(
    stored: np.ndarray,
    levels: np.ndarray,
    dataset: Dataset,
    index: int,
    preprocessing: Preprocessing,
) -> np.ndarray:
    """Returns the grey level of each stored value, uint8.

    The modality transform comes first, then the window, then the photometric interpretation
    (C.11.1).
    """
    rescaling = of_frame(dataset, index, "PixelValueTransformationSequence")
    view = of_frame(dataset, index, "FrameVOILUTSequence")
    values = _rescaled(stored, rescaling)
    if preprocessing.window:
        shares = _windowed(values, *preprocessing.window, "LINEAR")
    elif view.get("VOILUTSequence"):
        item = view.VOILUTSequence[0]
        entries = _looked_up(np.rint(values), item.LUTDescriptor, item.LUTData, dataset)
        shares = np.clip(entries / ((1 << item.LUTDescriptor[2]) - 1), 0, 1)
    elif own := window_of(view):
        shares = _windowed(values, *own, view.get("VOILUTFunction") or "LINEAR")
    else:
        shown = values
        if not is_plain(dataset, rescaling):
            shown = values[_used(stored, levels, dataset)]
            if preprocessing.no_window is None:
                raise Reject("no_window", "a DICOM file without a window; see --window")
        low, high = shown.min(), shown.max()
        shares = np.clip((values - low) / max(high - low, 1e-6), 0, 1)
    return np.rint(255 * (1 - shares if _is_inverted(dataset) else shares)).astype(np.uint8)


def _numbers(
    stored: np.ndarray, levels: np.ndarray, dataset: Dataset, index: int, physical: Physical
) -> np.ndarray:
    """Returns the number that a dataset stores for each stored value of a file, uint16."""
    rescaling = of_frame(dataset, index, "PixelValueTransformationSequence")
    unit = unit_of(dataset, rescaling)
    if unit != physical.unit:
        raise Reject("other_unit", f"values in {unit}, expected {physical.unit}")
    if unit == SHARE:
        values = (stored - stored[0]) / (len(stored) - 1)
        values = 1 - values if _is_inverted(dataset) else values
    else:
        values = _rescaled(stored, rescaling)
        has_table = rescaling.get("ModalityLUTSequence")
        slope = 1.0 if has_table else abs(float(rescaling.RescaleSlope))
        if slope < physical.slope * (1 - 1e-6):
            raise Reject(
                "out_of_range",
                f"values in steps of {slope:.6g} {unit}, which steps of {physical.slope:.6g} would "
                "merge; see --rescale",
            )
    numbers = np.rint((values - physical.intercept) / physical.slope)
    used = numbers[_used(stored, levels, dataset)]
    if used.min() < 0 or used.max() > 65_535:
        ends = np.array([0, 65_535]) * physical.slope + physical.intercept
        raise Reject(
            "out_of_range",
            f"values in {physical.unit} beyond {ends[0]:.6g} to {ends[1]:.6g}; see --rescale",
        )
    return numbers.clip(0, 65_535).astype(np.uint16)


def _rescaled(stored: np.ndarray, rescaling: Dataset) -> np.ndarray:
    """Returns the values after the modality transform, such as Hounsfield units (C.11.1)."""
    from pydicom.pixels import apply_modality_lut

    values = apply_modality_lut(stored, rescaling).astype(np.float64)
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


def palette_colours(pixels: np.ndarray, dataset: Dataset) -> np.ndarray:
    """Returns the colours, uint8 [rows, columns, 3], of values of a palette."""
    num_entries, first, bits = dataset.RedPaletteColorLookupTableDescriptor
    if "RedPaletteColorLookupTableData" in dataset:
        names = [f"{colour}PaletteColorLookupTable" for colour in ("Red", "Green", "Blue")]
        tables = [(dataset[f"{n}Descriptor"].value, dataset[f"{n}Data"].value) for n in names]
        colours = np.stack([_looked_up(pixels, *table, dataset) for table in tables], axis=-1)
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
