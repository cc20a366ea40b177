"""A dataset as the checks of an audit see it: its columns as integers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tfrecord_io.auditing.twins import Twins
from tfrecord_io.format.examples import FILE_NAME, as_classes
from tfrecord_io.format.groups import group_images
from tfrecord_io.format.manifest import Manifest, ManifestError


class Examined:
    """A dataset that is audited. In its columns, numbers count as their ranges.

    Attributes:
        dataset: the manifest; its audit is not used.
        examples: the table that `examples.audited` returns.
        twins: the duplicates among these examples.
        most_listed: largest number of cases that a finding lists; None for all.
        measures: the numbers behind the findings; each check adds its own.
        classes: the manifest, with ranges instead of numbers; `kind` is its kind of label.
        labels: texts of labels; of classes, their names.
        split: int64 [num_examples], index in `splits`, the names of the manifest's.
        label: int64 [num_examples], index in `labels`.
        groups: which images belong together, near duplicates aside; `joined` with them.

    Raises:
        ManifestError: if the manifest lacks a split or a label of the table.
    """

    def __init__(
        self, examples: pa.Table, twins: Twins, dataset: Manifest, most_listed: int | None
    ) -> None:
        self.dataset, self.examples, self.twins = dataset, examples, twins
        self.most_listed = most_listed
        self.measures: dict[str, Any] = {"examples": examples.num_rows}
        self.classes, in_classes = as_classes(dataset, examples)
        self.kind = self.classes.label_kind
        self.splits, self.labels = list(dataset.splits), self.classes.label_names
        if not self.kind.one_hot:
            self.labels = sorted(pc.unique(examples["label"]).to_pylist())
        self.split = _index(examples["split"], self.splits)
        self.label = _index(in_classes["label"], self.labels)
        self.groups = group_images(examples)
        self.joined = group_images(examples, twins.pairs)


def _index(column: pa.ChunkedArray, names: Sequence[str]) -> np.ndarray:
    index = pc.index_in(column, pa.array(list(names), pa.string()))
    if index.null_count:
        other = column.filter(pc.is_null(index))[0].as_py()
        raise ManifestError(f"{FILE_NAME} has the split or label {other!a} of another dataset")
    return index.to_numpy().astype(np.int64)
