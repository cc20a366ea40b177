"""Divides the examples of a dataset of numbers into ranges, so that groups can be compared.

The audit and the card compare groups of images: where they come from, how bright they are, in which
split. For a dataset of numbers these groups are up to four ranges with about as many images each.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tfrecord_io.kinds.classes import Classes
from tfrecord_io.kinds.label_kind import LabelKind
from tfrecord_io.kinds.numbers import NUMBER, ranges_of
from tfrecord_io.manifest import Manifest


class _Ranges(Classes):
    """The classes are ranges of a number; no dataset is stored with them."""

    noun, plural = "range", "ranges"


RANGES = _Ranges()


def numbers_of(examples: pa.Table) -> np.ndarray:
    """Returns the numbers of a dataset of numbers, float64 [num_examples]."""
    return pc.cast(examples["label"].cast(pa.string()), pa.float64()).to_numpy()


def with_ranges(examples: pa.Table, kind: LabelKind) -> pa.Table:
    """Returns the examples with the range of each number as its label.

    Args:
        examples: a table with the column `label`.
        kind: what an example's label can be; for other kinds than numbers nothing changes.
    """
    if not kind.is_number:
        return examples
    names, codes = ranges_of(numbers_of(examples))
    labels = pa.DictionaryArray.from_arrays(pa.array(codes, pa.int32()), pa.array(names))
    return examples.set_column(examples.schema.get_field_index("label"), "label", labels)


def as_classes(dataset: Manifest, examples: pa.Table) -> tuple[Manifest, pa.Table]:
    """Returns a dataset of numbers as one of classes; any other as it is.

    Args:
        dataset: the manifest.
        examples: the table that `columns.read_examples` returns.

    Returns:
        the manifest and the table with the ranges in ascending order as classes. The counts are
        those of the table, which has no augmented copies.
    """
    if not dataset.label_kind.is_number:
        return dataset, examples
    examples = with_ranges(examples, NUMBER)
    labels = examples["label"].combine_chunks()
    names, codes = labels.dictionary.to_pylist(), labels.indices.to_numpy()
    of_split = examples["split"].cast(pa.string()).to_numpy(zero_copy_only=False)
    splits = {
        name: dataclasses.replace(
            split,
            label_counts=tuple(np.bincount(codes[of_split == name], minlength=len(names)).tolist()),
        )
        for name, split in dataset.splits.items()
    }
    classes = dataclasses.replace(
        dataset, label_kind=RANGES, label_names=tuple(names), splits=splits
    )
    return classes, examples


def describe(dataset: Manifest, examples: pa.Table) -> dict[str, dict[str, Any]]:
    """Returns statistics of the numbers of each split: JSON values by name."""
    values = numbers_of(examples)
    of_split = examples["split"].cast(pa.string()).to_numpy(zero_copy_only=False)
    described = {}
    for name in dataset.splits:
        members = values[of_split == name]
        if len(members):
            low, first, median, third, high = np.quantile(members, (0, 0.25, 0.5, 0.75, 1)).tolist()
            described[name] = {
                "images": len(members),
                "mean": float(members.mean()),
                "std": float(members.std()),
                "min": low,
                "quartiles": [first, median, third],
                "max": high,
            }
    return described
