"""Checks the sizes of images, and reports blank images and files that were not used.

Each check yields its findings; those with `measures` add their numbers to it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa

from tfrecord_io import manifest, shapes
from tfrecord_io.auditing.findings import MAX_LISTED, MOST_NAMES, Finding, many
from tfrecord_io.auditing.twins import Twins
from tfrecord_io.printing import listed


def check_sizes(
    examples: pa.Table, dataset: manifest.Manifest, measures: dict[str, Any]
) -> Iterator[Finding]:
    """Yields images of unusual size, and those smaller than they are stored."""
    if not {"width", "height"} <= set(examples.column_names) or not examples.num_rows:
        return
    sizes = Counter(zip(*(examples[name].to_pylist() for name in ("width", "height")), strict=True))
    measures["sizes"] = [
        {"width": w, "height": h, "images": count} for (w, h), count in sizes.most_common(12)
    ]
    if "shape" in examples.column_names:
        pairs = set(zip(*(examples[name].to_pylist() for name in ("split", "shape")), strict=True))
        measures["shapes"] = {
            name: shapes.distinct(shape for split, shape in pairs if split == name)
            for name in dataset.splits
        }
    (usual, _), *_ = sizes.most_common(1)
    far = {
        size: count for size, count in sizes.most_common() if max(map(_factor, size, usual)) >= 2
    }
    measures["size_outliers"] = sum(far.values())
    if far:
        yield Finding(
            code="size_outliers",
            severity="note",
            title=f"{many(sum(far.values()), 'image')} far larger or smaller than usual",
            detail=f"The usual size is {usual[0]}×{usual[1]} pixels. These images have at "
            "least twice or at most half as many pixels in one direction. All are resized to "
            f"{dataset.image_shape[1]}×{dataset.image_shape[0]}"
            f"{'' if dataset.is_padded else ', so their proportions change'}.",
            count=sum(far.values()),
            listed=tuple({"width": w, "height": h, "images": n} for (w, h), n in far.items())[
                :MAX_LISTED
            ],
        )
    stored_height, stored_width, _ = dataset.image_shape
    small = sum(n for (w, h), n in sizes.items() if w < stored_width or h < stored_height)
    measures["enlarged_images"] = small
    if small:
        yield Finding(
            code="enlarged",
            severity="note",
            title=f"{many(small, 'image')} smaller than the stored size",
            detail=f"They were enlarged to {stored_width}×{stored_height} and are blurred.",
            count=small,
        )


def _factor(side: int, usual: int) -> float:
    return max(side / usual, usual / max(side, 1))


def check_blank(twins: Twins, measures: dict[str, Any]) -> Iterator[Finding]:
    """Yields the number of images of a single colour."""
    num_blank = 0 if twins.is_blank is None else int(twins.is_blank.sum())
    measures["blank_images"] = num_blank
    if num_blank:
        yield Finding(
            code="blank",
            severity="warning",
            title=f"{many(num_blank, 'image')} of a single colour",
            detail="They show nothing.",
            count=num_blank,
        )


def check_source(dataset: manifest.Manifest) -> Iterator[Finding]:
    """Yields how many files are second copies, were rejected, or were left out by a policy."""
    copies = dataset.counts.get("copies", 0)
    if copies:
        yield Finding(
            code="source_copies",
            severity="note",
            title=f"{many(copies, 'file')} in the source a second time",
            detail="A second folder tree in the source repeats these files. The build "
            "recognised them and used each once.",
            count=copies,
        )
    rejects = sum(dataset.rejects.values())
    if rejects:
        yield Finding(
            code="rejects",
            severity="note",
            title=f"{many(rejects, 'image')} rejected",
            detail=f"They could not be used ({_reasons(dataset.rejects)}); "
            f"{manifest.REJECTS_FILE_NAME} lists them.",
            count=rejects,
        )
    dropped = dataset.counts.get("dropped", {})
    if dropped:
        yield Finding(
            code="dropped",
            severity="note",
            title=f"{many(sum(dropped.values()), 'image')} left out by a policy",
            detail=f"{_reasons(dropped)}; {manifest.DROPPED_FILE_NAME} lists them.",
            count=sum(dropped.values()),
        )


def _reasons(counts: Mapping[str, int]) -> str:
    return listed([f"{count:,} {name}" for name, count in counts.items()], MOST_NAMES)
