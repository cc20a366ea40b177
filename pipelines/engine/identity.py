"""What a dataset is built from, and everything that decides its bytes."""

from __future__ import annotations

from typing import Any

from pipelines.listing import anonymous, frames
from pipelines.options import BuildOptions
from pipelines.sources.source import Source
from tfrecord_io.decoding import preprocess


def make_identity(
    options: BuildOptions,
    source: Source,
    listing_digest: str,
    labels: tuple[str, ...],
    *,
    has_dicom: bool,
    num_pages: int,
    no_window: bool,
    secret: anonymous.Secret | None,
) -> dict[str, Any]:
    """Returns everything that decides the bytes of the dataset, by the names of the flags.

    An option that an old release did not have is absent at its default, so that datasets of that
    release still count as complete.

    Args:
        options: what the user chose.
        source: the source of the images.
        listing_digest: `plan.listing_digest` of the listed images.
        labels: names of the labels, in the order of their indices.
        has_dicom: whether images are frames of DICOM files.
        num_pages: number of images that are pages of TIFF files.
        no_window: whether DICOM files name no window.
        secret: the secret of an anonymous dataset.

    Raises:
        errors.UserError: if there are DICOM files, and one of their codecs is not installed.
    """
    tree, pixels = options.listing.tree, options.images.preprocessing
    codecs = frames.require_codecs() if has_dicom else {}
    identity = {
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
        **({"tiff_pages": num_pages} if num_pages else {}),
        # Older releases showed such files in the range of their stored bits.
        **({"no_window": pixels.no_window} if no_window and not pixels.is_windowed else {}),
        "decoder": {**preprocess.decoder_versions(), **codecs},
    }
    return anonymous.hide_identity(identity, secret) if secret else identity


def source_facts(source: Source, secret: anonymous.Secret | None) -> dict[str, Any]:
    """Returns the source's entry in the manifest."""
    return anonymous.describe(source, secret) if secret else source.describe()
