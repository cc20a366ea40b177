"""Reads the columns of the examples table that an audit needs, and numbers their values."""

from __future__ import annotations

import os
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tfrecord_io import manifest
from tfrecord_io.auditing import ranges
from tfrecord_io.auditing.findings import MAX_LISTED
from tfrecord_io.groups import group_images, plural_unit

# Columns of the examples table that the audit reads; an older table may lack some.
_COLUMNS = (
    "split", "shard", "row", "key", "label", "patient", "path", "width", "height", "mode",
    "file_format", "quantization", "file_xxh3", "pixels_xxh3", "brightness", "white_border",
    "perceptual_hash", "site", "shape", "study", "series",
)  # fmt: skip
_REPEATED = ("split", "shard", "label", "mode", "file_format")


def read_examples(file: str | os.PathLike[str] | pa.NativeFile) -> pa.Table:
    """Returns those of `_COLUMNS` that an examples table has, without augmented copies.

    Raises:
        manifest.ManifestError: if the table is damaged or lacks a column that every version has.
    """
    try:
        names = pq.read_schema(file).names
    except pa.ArrowInvalid as error:
        raise manifest.ManifestError(f"{manifest.EXAMPLES_FILE_NAME} is damaged: {error}") from None
    parquet = pq.ParquetFile(file, read_dictionary=[n for n in _REPEATED if n in names])
    missing = {"split", "shard", "row", "label", "patient", "path", "pixels_xxh3"} - set(names)
    if missing:
        raise manifest.ManifestError(
            f"{manifest.EXAMPLES_FILE_NAME} has no column {', '.join(sorted(missing))}"
        )
    columns = [name for name in _COLUMNS if name in names]
    if "site" in columns and not pa.types.is_string(parquet.schema_arrow.field("site").type):
        columns.remove("site")  # a table of labels had a column of that name, of another kind
    table = parquet.read(columns=[*columns, "variant"] if "variant" in names else columns)
    if "variant" in names:
        # An augmented copy resembles its original on purpose, so it is not audited.
        table = table.filter(pc.equal(table["variant"], 0))
    return table.select(columns).unify_dictionaries()


def encode(column: pa.ChunkedArray) -> tuple[np.ndarray, pa.Array]:
    """Numbers the different values of a column, in the order of their first rows.

    Returns:
        int64 [num_rows], the number of each row's value, or -1 where there is none; and the values.
    """
    encoded = column.combine_chunks().dictionary_encode()
    return encoded.indices.fill_null(-1).to_numpy().astype(np.int64), encoded.dictionary


class CodedColumns:
    """Columns of the examples table as integers.

    Numbers count as their ranges, see `ranges.as_classes`.

    Attributes:
        splits: names of the splits.
        kind: what an example's label can be.
        plural: what several of the dataset's labels are called.
        classes: the manifest, with ranges instead of numbers.
        labels: texts of labels; of classes, their names.
        split: int64 [num_examples], index in `splits`.
        label: int64 [num_examples], index in `labels`.
        text: int64 [num_examples], the same for examples of the same label, of numbers too.
        groups: which images belong together, near duplicates aside.
        joined: the same with near duplicates.
        names: of the groups that are known, as they are shown.
        group: int64 [num_examples], index in `names`, or -1 if nothing is known of an image.
        most_listed: largest number of cases that a finding lists; None for all.

    Raises:
        manifest.ManifestError: if the manifest lacks a split or a label of the table.
    """

    def __init__(
        self,
        examples: pa.Table,
        dataset: manifest.Manifest,
        copies: np.ndarray,
        most_listed: int | None = MAX_LISTED,
    ) -> None:
        """Numbers the columns of a dataset; `copies` is as in `groups.group_images`."""
        self.most_listed = most_listed
        self.plural = dataset.label_kind.plural
        self.text, _ = encode(examples["label"])
        self.classes, examples = ranges.as_classes(dataset, examples)
        self.splits = list(dataset.splits)
        self.kind = self.classes.label_kind
        self.labels = self.classes.label_names
        if not self.kind.one_hot:
            self.labels = sorted(pc.unique(examples["label"].cast(pa.string())).to_pylist())
        self.split = _index(examples["split"], self.splits)
        self.label = _index(examples["label"], self.labels)
        self.groups = group_images(examples)
        self.joined = group_images(examples, copies)
        names = self.groups.names
        is_known = pc.invert(pc.starts_with(names, "image:"))
        known = pc.if_else(is_known, names, pa.scalar(None, names.type))
        self.group, names = encode(pa.chunked_array([known]))
        self.names = [name.removeprefix("patient:") for name in names.to_pylist()]

    @property
    def units(self) -> tuple[str, str]:
        """What the known groups are, such as `patient or study`, and its plural."""
        sources = [source for source in self.groups.sources if source != "image"]
        return " or ".join(sources), " or ".join(map(plural_unit, sources))


def _index(column: pa.ChunkedArray, names: Sequence[str]) -> np.ndarray:
    column = column.cast(pa.string())
    index = pc.index_in(column, pa.array(list(names), pa.string()))
    if index.null_count:
        other = column.filter(pc.is_null(index))[0].as_py()
        raise manifest.ManifestError(
            f"{manifest.EXAMPLES_FILE_NAME} has the split or label {other!a}, which the manifest "
            "does not have: they are of different datasets"
        )
    return index.to_numpy().astype(np.int64)
