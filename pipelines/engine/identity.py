"""What a dataset is built from, and everything that decides its bytes."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from pipelines import errors
from pipelines.listing import frames
from pipelines.listing.listing import PATIENT_IN_PATH
from pipelines.options import BuildOptions
from pipelines.planning.options import SplitOptions
from pipelines.shards.options import ImageOptions
from pipelines.sources.source import Source
from tfrecord_io.decoding import preprocess
from tfrecord_io.decoding.dicom_tags import SHARE
from tfrecord_io.decoding.options import Physical


def make_identity(
    options: BuildOptions,
    source: Source,
    listing_digest: str,
    labels: tuple[str, ...],
    num_frames: Mapping[str, int],
) -> dict[str, Any]:
    """Returns everything that decides the bytes of the dataset, by the names of the flags.

    An option that an old release did not have is absent at its default, so that datasets of that
    release still count as complete.

    Args:
        options: what the user chose.
        source: the source of the images.
        listing_digest: `plan.listing_digest` of the listed images.
        labels: names of the labels, in the order of their indices.
        num_frames: see `Listing.frames`.

    Raises:
        errors.UserError: if there are DICOM files, and one of their codecs is not installed; or if
            `--rescale` is given and the files have no physical unit.
    """
    tree, pixels = options.listing.tree, options.images.preprocessing
    no_window = frames.NO_WINDOW in num_frames and not pixels.is_windowed
    physical = _physical(options.images, num_frames)
    codecs = frames.require_codecs() if "DICOM" in num_frames else {}
    return {
        "source": source.describe()["kind"],
        "source_listing": listing_digest,
        "name": options.output.name,
        "classes": list(labels),
        # Of other sources the listing's digest covers the tree, since it contains the folders.
        **({"tree": tree.strip(" /")} if tree is not None and source.must_be_unpacked else {}),
        **options.listing.identity(),
        **options.images.identity(),
        **options.splits.identity(),
        **options.plan.identity(),
        # Older releases rejected a TIFF of several pages.
        **({"tiff_pages": num_frames["TIFF"]} if "TIFF" in num_frames else {}),
        # Older releases showed such files in the range of their stored bits.
        **({"no_window": pixels.no_window} if no_window else {}),
        # Older releases stored the values of such files as they were.
        **({"physical": dataclasses.asdict(physical)} if physical else {}),
        # Older releases took images of unknown patients one by one.
        **({"grouped_by": "study"} if _goes_by_study(options.splits, num_frames) else {}),
        # Older releases looked for patients in the names of files alone.
        **({"patient_in_path": True} if PATIENT_IN_PATH in num_frames else {}),
        "decoder": {**preprocess.decoder_versions(), **codecs},
    }


def _physical(images: ImageOptions, num_frames: Mapping[str, int]) -> Physical | None:
    """Returns the formula of the stored numbers, in the unit that most images have."""
    units = {
        name.removeprefix(frames.IN_UNIT): count
        for name, count in num_frames.items()
        if name.startswith(frames.IN_UNIT)
    }
    unit = max(sorted(units), key=units.__getitem__, default=SHARE)
    if images.rescale and unit == SHARE:
        raise errors.UserError(
            "--rescale needs DICOM files with a rescale slope and intercept; most images of this "
            "input have none, so leave it out"
        )
    is_needed = units and images.dtype == "uint16"
    return Physical.of_unit(unit, images.rescale) if is_needed else None


def _goes_by_study(options: SplitOptions, num_frames: Mapping[str, int]) -> bool:
    """Returns whether studies or series of unknown patients decide splits or what is dropped."""
    decide = options.splits == "patient" or options.leaks == "drop" or options.keep_split
    return bool(decide) and frames.STUDY_WITHOUT_PATIENT in num_frames


def frames_in(identity: Mapping[str, Any]) -> dict[str, int]:
    """Returns the `num_frames` with which an identity was made, as far as it shows them."""
    return {
        **({"TIFF": identity["tiff_pages"]} if "tiff_pages" in identity else {}),
        **({"DICOM": 1} if "pydicom" in identity.get("decoder", {}) else {}),
        **({frames.STUDY_WITHOUT_PATIENT: 1} if "grouped_by" in identity else {}),
        **({frames.NO_WINDOW: 1} if "no_window" in identity else {}),
        **({frames.IN_UNIT + identity["physical"]["unit"]: 1} if "physical" in identity else {}),
        **({PATIENT_IN_PATH: 1} if "patient_in_path" in identity else {}),
    }
