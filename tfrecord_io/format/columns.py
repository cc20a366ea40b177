"""Reads the examples table, and divides numbers into ranges, so that groups can be compared."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tfrecord_io.format.kinds import Classes, LabelKind
from tfrecord_io.format.manifest import EXAMPLES_FILE_NAME, Manifest, ManifestError

# Columns of the examples table that the audit reads, and those that not every table has.
_COLUMNS = (
    "split", "shard", "row", "key", "label", "patient", "path", "width", "height", "mode",
    "file_format", "quantization", "file_xxh3", "pixels_xxh3", "brightness", "white_border",
    "perceptual_hash", "site", "shape", "study", "series",
)  # fmt: skip
_OPTIONAL = {"site", "study", "series"}


class _Ranges(Classes):
    """The classes are ranges of a number; no dataset is stored with them."""

    noun, plural = "range", "ranges"


def read_examples(file: str | os.PathLike[str]) -> pa.Table:
    """Returns what `audited` does of an examples table in a file.

    Raises:
        ManifestError: if the table is damaged or lacks a column that every version has.
    """
    try:
        names = pq.read_schema(file).names
    except pa.ArrowInvalid as error:
        raise ManifestError(f"{EXAMPLES_FILE_NAME} is damaged: {error}") from None
    if missing := {*_COLUMNS, "variant"} - _OPTIONAL - {*names}:
        raise ManifestError(
            f"{EXAMPLES_FILE_NAME} has no column {', '.join(sorted(missing))}; build the dataset "
            "again"
        )
    columns = [name for name in (*_COLUMNS, "variant") if name in names]
    return audited(pq.ParquetFile(file).read(columns))


def audited(table: pa.Table) -> pa.Table:
    """Returns those of `_COLUMNS` that an examples table has, without augmented copies."""
    columns = [name for name in _COLUMNS if name in table.column_names]
    # An augmented copy resembles its original on purpose, so it is not audited.
    if pc.any(pc.greater(table["variant"], 0)).as_py():
        table = table.filter(pc.equal(table["variant"], 0))
    return table.select(columns)


def other_dataset(what: str) -> ManifestError:
    """Returns the error of a table that names something that the manifest does not have."""
    return ManifestError(
        f"{EXAMPLES_FILE_NAME} has {what}, which the manifest does not have: they are of "
        "different datasets"
    )


def encode(column: pa.ChunkedArray) -> tuple[np.ndarray, pa.Array]:
    """Numbers the different values of a column, in the order of their first rows.

    Returns:
        int64 [num_rows], the number of each row's value, or -1 where there is none; and the values.
    """
    encoded = column.combine_chunks().dictionary_encode()
    return encoded.indices.fill_null(-1).to_numpy().astype(np.int64), encoded.dictionary


def encode_labels(examples: pa.Table, kind: LabelKind) -> tuple[Sequence[str], np.ndarray]:
    """Returns the different labels, or ranges of numbers, and the place of each example in them."""
    codes, texts = encode(examples["label"])
    return kind.classes_of(texts.to_pylist(), codes)


def numbers_of(examples: pa.Table) -> np.ndarray:
    """Returns the numbers of a dataset of numbers, float64 [num_examples]."""
    return pc.cast(examples["label"], pa.float64()).to_numpy()


def as_classes(dataset: Manifest, examples: pa.Table) -> tuple[Manifest, pa.Table]:
    """Returns a dataset of numbers as one of classes, its ranges in ascending order.

    Any other keeps its labels. The counts of the labels are those of `examples`, the table that
    `read_examples` returns, which has no augmented copies.
    """
    kind, names = dataset.label_kind, dataset.label_names
    if kind.is_number:
        ranges, codes = encode_labels(examples, kind)
        labels = pa.array(ranges, pa.string()).take(pa.array(codes))
        examples = examples.set_column(examples.schema.get_field_index("label"), "label", labels)
        kind, names = _Ranges(), tuple(ranges)
    texts, of_split = examples["label"], examples["split"]
    splits = {}
    for name, split in dataset.splits.items():
        counts = kind.counts(texts.filter(pc.equal(of_split, name)).to_pylist(), names)
        splits[name] = dataclasses.replace(split, label_counts=counts)
    facts = {"label_kind": kind, "label_names": names, "splits": splits}
    return dataclasses.replace(dataset, **facts), examples
