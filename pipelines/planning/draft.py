"""The manifest before a shard is written: what a dataset is, and everything that decides it."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from pipelines import errors
from pipelines.listing.images import Images
from pipelines.listing.refs import counts_of
from pipelines.stores.output_folder import fingerprint
from tfrecord_io.decoding import preprocess
from tfrecord_io.decoding.options import Preprocessing
from tfrecord_io.format.kinds import LabelKind
from tfrecord_io.format.manifest import Manifest


def make_draft(
    images: Images,
    pixels: Preprocessing,
    label_kind: LabelKind,
    name: str | None,
    decided: Mapping[str, Any],
) -> Manifest:
    """Returns the manifest without what only the shards can say.

    Its `options` are the identity: everything that decides the bytes of the dataset, by flag.
    `decided` are the parts of it from the splits and the plan. The default `name` is that of the
    source.

    Raises:
        errors.UserError: if there are DICOM files, and one of their codecs is not installed; or a
            window and no DICOM files.
    """
    if pixels.window and not images.has_dicom:
        raise errors.UserError("--window is for DICOM, and no image of this input is; leave it out")
    try:
        decoder = preprocess.decoder_versions(with_dicom=images.has_dicom)
    except ModuleNotFoundError as error:
        raise errors.UserError(str(error)) from None
    name = name or name_of(images.source)
    identity = {
        "source": images.source["kind"],
        "source_listing": images.digest,
        "name": name,
        "classes": list(images.label_names),
        **images.identity,
        **pixels.identity(),
        **decided,
        "decoder": decoder,
    }
    return Manifest(
        name=name,
        image_shape=pixels.image_shape,
        label_names=images.label_names,
        splits={},
        preprocessing=pixels.to_dict(),
        source=images.source,
        counts={},
        rejects={},
        options=identity,
        fingerprint=fingerprint(identity),
        versions=decoder,
        label_kind=label_kind,
    )


def with_counts(draft: Manifest, images: Images, planned: pa.Table, dropped: pa.Table) -> Manifest:
    """Returns the manifest with what became of the files so far, and what was noted.

    `planned` are the images in the order of their records, as `make_plan` returns them, and
    `dropped` those that `assign_splits` left out.
    """
    ledger, num_copies = images.ledger, int(np.count_nonzero(planned["variant"]))
    counts = {
        "files": ledger.num_files,
        "copies": ledger.copies,
        "ignored": dict(ledger.ignored),
        **({"excluded": ledger.excluded} if ledger.excluded else {}),
        "dropped": dict(sorted(counts_of(dropped["reason"]).items())),
        "over_limit": images.table.num_rows - (planned.num_rows - num_copies),
        **({"variants": num_copies} if num_copies else {}),
    }
    audit = {
        "notes": list(ledger.notes),
        "layout": [list(level) for level in images.layout],
    }
    return dataclasses.replace(draft, counts=counts, audit=audit)


def name_of(source: Mapping[str, Any]) -> str:
    """Returns a name for the dataset of a source, by its entry in the manifest."""
    if source["kind"] == "synthetic":
        return "synthetic_oct"
    stem = source.get("name", "images").partition(".")[0]
    name = re.sub(r"[^a-z0-9]+", "_", stem.lower()).strip("_")
    return name if name[:1].isalpha() else f"images_{name}".rstrip("_")
