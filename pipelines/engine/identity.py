"""What a dataset is built from, and everything that decides its bytes."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from pipelines import errors
from pipelines.listing.refs import Listing, other_columns
from pipelines.options import BuildOptions
from pipelines.planning.options import SplitOptions
from pipelines.planning.plan import listing_digest
from pipelines.shards.options import ImageOptions
from pipelines.sources.source import Source
from tfrecord_io.decoding import preprocess
from tfrecord_io.decoding.dicom_tags import SHARE
from tfrecord_io.decoding.options import Physical


def make_identity(
    options: BuildOptions, source: Source, listing: Listing, labels: tuple[str, ...]
) -> dict[str, Any]:
    """Returns everything that decides the bytes of the dataset, by the names of the flags.

    An option that an old release did not have is absent at its default, so that datasets of that
    release still count as complete.

    Raises:
        errors.UserError: if there are DICOM files, and one of their codecs is not installed; or if
            `--rescale` is given and the files have no physical unit.
    """
    tree, pixels, facts = options.listing.tree, options.images.preprocessing, source.describe()
    physical = _physical(options.images, listing.units)
    try:
        decoder = preprocess.decoder_versions(with_dicom="DICOM" in listing.frames)
    except ModuleNotFoundError as error:
        raise errors.UserError(str(error)) from None
    return {
        "source": facts["kind"],
        "source_listing": listing_digest(listing.refs),
        "name": options.output.name,
        "classes": list(labels),
        # The listing's digest covers the tree, since it contains the folders. This entry stays for
        # the datasets of older releases, which compared those of a tar.gz without listing it.
        **({"tree": tree.strip(" /")} if tree is not None and "gzip" in facts else {}),
        **options.listing.identity(),
        **options.images.identity(),
        **options.splits.identity(),
        **options.plan.identity(),
        # Older releases rejected a TIFF of several pages.
        **({"tiff_pages": listing.frames["TIFF"]} if "TIFF" in listing.frames else {}),
        # Older releases showed such files in the range of their stored bits.
        **({"no_window": pixels.no_window} if listing.no_window and not pixels.is_windowed else {}),
        # Older releases stored the values of such files as they were.
        **({"physical": dataclasses.asdict(physical)} if physical else {}),
        # Older releases took images of unknown patients one by one.
        **({"grouped_by": "study"} if _goes_by_study(options.splits, listing.refs) else {}),
        # Older releases looked for patients in the names of files alone.
        **({"patient_in_path": True} if listing.patient_in_path else {}),
        "decoder": decoder,
    }


def _physical(images: ImageOptions, units: Mapping[str, int]) -> Physical | None:
    """Returns the formula of the stored numbers, in the unit that most images have."""
    unit = max(sorted(units), key=units.__getitem__, default=SHARE)
    if images.rescale and unit == SHARE:
        raise errors.UserError(
            "--rescale needs DICOM files with a rescale slope and intercept; most images of this "
            "input have none, so leave it out"
        )
    is_needed = units and images.dtype == "uint16"
    return Physical.of_unit(unit, images.rescale) if is_needed else None


def _goes_by_study(options: SplitOptions, refs: pa.Table) -> bool:
    """Returns whether studies or series of unknown patients decide splits or what is dropped."""
    others = other_columns(refs)
    ids = [others[name] for name in ("study", "series") if name in others]
    decide = options.splits == "patient" or options.leaks == "drop" or options.keep_split
    if not (decide and ids):
        return False
    in_study = pc.is_valid(pc.coalesce(*ids))
    return pc.any(pc.and_(in_study, refs["patient"].is_null().combine_chunks())).as_py()
