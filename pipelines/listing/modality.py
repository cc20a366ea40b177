"""Chooses among pictures of several modalities, such as B-scans and infrared ones of an eye."""

from __future__ import annotations

import collections
from collections.abc import Collection, Sequence

from pipelines import errors
from pipelines.listing.images import Images
from pipelines.listing.refs import OTHER
from tfrecord_io.decoding.preprocess import Pictures
from tfrecord_io.terminal.printing import printable

#: The column of the modality, from tags of DICOM or a table.
COLUMN = f"{OTHER}modality"

_UNKNOWN = "none named"


def of_modality(
    pictures: Sequence[Pictures], known: Sequence[str | None] | None, wanted: Collection[str]
) -> list[Pictures]:
    """Returns the pictures of each file without those of other modalities, which are ignored.

    Args:
        pictures: of each file.
        known: the modality of each file, if a table of labels tells it.
        wanted: modalities.

    Raises:
        errors.UserError: if no picture has one of them.
    """
    found = known or [some.header.modality for some in pictures]
    if not wanted & {*found}:
        counts = collections.Counter[str | None]()
        for name, some in zip(found, pictures, strict=True):
            counts[name] += len(some.frames)
        raise errors.UserError(
            f"--modality {','.join(sorted(wanted))}: the modalities of the input are "
            f"{_shown(counts)}; DICOM files name them, or a column modality of --labels"
        )
    others = Pictures(frames=[])
    return [
        some if name in wanted else others._replace(
            ignored=[*some.ignored, *["other_modality"] * len(some.frames)]
        )
        for name, some in zip(found, pictures, strict=True)
    ]  # fmt: skip


def with_modalities_noted(images: Images) -> Images:
    """Adds a note with their counts, if the images have several modalities."""
    if COLUMN not in images.table.column_names:
        return images
    groups = images.table.select(["label", COLUMN]).group_by(["label", COLUMN])
    rows = groups.aggregate([([], "count_all")]).to_pylist()
    counts, classes = collections.Counter[str | None](), collections.Counter[str]()
    for row in rows:
        counts[row[COLUMN]] += row["count_all"]
        classes[row["label"]] += 1
    if len(counts) < 2:
        return images
    mixed = sum(count > 1 for count in classes.values())
    where = f"mixed in {mixed} of {len(classes)} classes" if mixed else "each in its own class"
    first = next(name for name, _ in counts.most_common() if name)
    text = (
        f"the images have {len(counts)} modalities, {where}: {_shown(counts)}; --modality "
        f"{first} uses one alone"
    )
    # A text in the place of a modality may name a person.
    return images.noted(text)


def _shown(counts: collections.Counter[str | None]) -> str:
    return ", ".join(
        f"{_UNKNOWN if name is None else printable(name)} {count:,}"
        for name, count in counts.most_common()
    )
