"""What a dataset is built from, and everything that decides its bytes."""

from __future__ import annotations

from typing import Any

from pipelines.listing import frames
from pipelines.options import BuildOptions
from pipelines.planning import anonymous
from pipelines.sources.source import Source
from tfrecord_io import augment
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

    Raises:
        errors.UserError: if there are DICOM files, and one of their codecs is not installed.
    """
    listing, pixels = options.listing, options.preprocessing
    kind, variants = options.label_kind, options.plan.variants
    identity = {
        "source": source.describe()["kind"],
        "source_listing": listing_digest,
        "name": options.name,
        "classes": list(labels),
        **_tree(options, source),
        "group_regex": listing.group_regex,
        **({"labels": listing.labels.digest} if listing.labels else {}),
        **({**kind.entry, "format_version": kind.format_version} if kind.entry else {}),
        "image_size": [pixels.height, pixels.width],
        "channels": pixels.channels,
        "resize": pixels.resize,
        "splits": options.splits,
        "split_fractions": dict(options.split_fractions) if options.split_fractions else None,
        "split_seed": "auto" if options.split_seed is None else options.split_seed,
        "keep_split": options.keep_split,
        # `fail` writes the same bytes as `keep`, if the build succeeds.
        "leaks": "drop" if options.drops.leaks == "drop" else "keep",
        "duplicates": "drop" if options.drops.duplicates == "drop" else "keep",
        "seed": options.plan.seed,
        "shard_size_mb": options.plan.shard_size_mb,
        "num_shards": options.plan.num_shards,
        "limit": options.plan.limit,
        **({"dtype": pixels.dtype, "format_version": 2} if pixels.dtype != "uint8" else {}),
        **({"window": list(pixels.window)} if pixels.window else {}),
        **({"variants": variants, "augmentation": dict(augment.RECIPE)} if variants else {}),
        # Older releases rejected a TIFF of several pages.
        **({"tiff_pages": num_pages} if num_pages else {}),
        # Older releases showed such files in the range of their stored bits.
        **({"no_window": pixels.no_window} if no_window and not pixels.is_windowed else {}),
        "decoder": {
            **preprocess.decoder_versions(),
            **(frames.require_codecs() if has_dicom else {}),
        },
    }
    return anonymous.hide_identity(identity, options.secret) if options.secret else identity


def source_facts(options: BuildOptions, source: Source) -> dict[str, Any]:
    """Returns the source's entry in the manifest."""
    if options.secret:
        return anonymous.describe(source, options.secret)
    return source.describe()


def _tree(options: BuildOptions, source: Source) -> dict[str, Any]:
    """Returns the chosen tree, if `job.prepared` may recognise the dataset without a listing.

    For other sources the listing's digest covers the tree, since it contains the images' folders.
    """
    tree = options.listing.tree
    if tree is None or not source.must_be_unpacked:
        return {}
    return {"tree": tree.strip(" /")}
