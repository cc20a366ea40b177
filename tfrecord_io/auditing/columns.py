"""Reads the examples table, and divides numbers into ranges, so that groups can be compared.

The audit and the card compare groups of images: where they come from, how bright they are, in which
split. For a dataset of numbers these groups are up to four ranges with about as many images each.
"""

from __future__ import annotations

import dataclasses
import os

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tfrecord_io import manifest
from tfrecord_io.kinds.classes import Classes
from tfrecord_io.kinds.label_kind import LabelKind
from tfrecord_io.kinds.numbers import NUMBER, ranges_of

# Columns of the examples table that the audit reads; an older table may lack some.
_REQUIRED = {"split", "shard", "row", "label", "patient", "path", "pixels_xxh3"}
_COLUMNS = (
    "split", "shard", "row", "key", "label", "patient", "path", "width", "height", "mode",
    "file_format", "quantization", "file_xxh3", "pixels_xxh3", "brightness", "white_border",
    "perceptual_hash", "site", "shape", "study", "series",
)  # fmt: skip
_REPEATED = ("split", "shard", "label", "mode", "file_format")


class _Ranges(Classes):
    """The classes are ranges of a number; no dataset is stored with them."""

    noun, plural = "range", "ranges"


RANGES = _Ranges()


def read_examples(file: str | os.PathLike[str] | pa.NativeFile) -> pa.Table:
    """Returns those of `_COLUMNS` that an examples table has, without augmented copies.

    Raises:
        manifest.ManifestError: if the table is damaged or lacks a column that every version has.
    """
    try:
        schema = pq.read_schema(file)
    except pa.ArrowInvalid as error:
        raise manifest.ManifestError(f"{manifest.EXAMPLES_FILE_NAME} is damaged: {error}") from None
    if missing := _REQUIRED - set(schema.names):
        raise manifest.ManifestError(
            f"{manifest.EXAMPLES_FILE_NAME} has no column {', '.join(sorted(missing))}"
        )
    columns = [name for name in _COLUMNS if name in schema.names]
    if "site" in columns and not pa.types.is_string(schema.field("site").type):
        columns.remove("site")  # a table of labels had a column of that name, of another kind
    parquet = pq.ParquetFile(file, read_dictionary=[n for n in _REPEATED if n in columns])
    if "variant" not in schema.names:
        return parquet.read(columns).unify_dictionaries()
    # An augmented copy resembles its original on purpose, so it is not audited.
    table = parquet.read([*columns, "variant"])
    return table.filter(pc.equal(table["variant"], 0)).select(columns).unify_dictionaries()


def encode(column: pa.ChunkedArray) -> tuple[np.ndarray, pa.Array]:
    """Numbers the different values of a column, in the order of their first rows.

    Returns:
        int64 [num_rows], the number of each row's value, or -1 where there is none; and the values.
    """
    encoded = column.combine_chunks().dictionary_encode()
    return encoded.indices.fill_null(-1).to_numpy().astype(np.int64), encoded.dictionary


def numbers_of(examples: pa.Table) -> np.ndarray:
    """Returns the numbers of a dataset of numbers, float64 [num_examples]."""
    return pc.cast(examples["label"].cast(pa.string()), pa.float64()).to_numpy()


def with_ranges(examples: pa.Table, kind: LabelKind) -> pa.Table:
    """Returns examples whose labels are of a kind; the range of each number is its label."""
    if not kind.is_number:
        return examples
    names, codes = ranges_of(numbers_of(examples))
    labels = pa.DictionaryArray.from_arrays(pa.array(codes, pa.int32()), pa.array(names))
    return examples.set_column(examples.schema.get_field_index("label"), "label", labels)


def as_classes(
    dataset: manifest.Manifest, examples: pa.Table
) -> tuple[manifest.Manifest, pa.Table]:
    """Returns a dataset of numbers as one of classes; any other as it is.

    Args:
        dataset: the manifest.
        examples: the table that `read_examples` returns.

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
    splits = {}
    for name, split in dataset.splits.items():
        counts = np.bincount(codes[of_split == name], minlength=len(names))
        splits[name] = dataclasses.replace(split, label_counts=tuple(counts.tolist()))
    ranges = {"label_kind": RANGES, "label_names": tuple(names), "splits": splits}
    return dataclasses.replace(dataset, **ranges), examples
