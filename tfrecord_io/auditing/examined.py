"""A dataset as the checks of an audit see it: its columns as integers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tfrecord_io import manifest
from tfrecord_io.auditing.columns import as_classes, encode
from tfrecord_io.auditing.twins import Twins
from tfrecord_io.groups import group_images, plural_unit


class Examined:
    """A dataset that is audited. In its columns, numbers count as their ranges.

    Attributes:
        dataset: the manifest; its audit is not used.
        examples: the table that `columns.read_examples` returns.
        twins: the duplicates among these examples.
        most_listed: largest number of cases that a finding lists; None for all.
        measures: the numbers behind the findings; each check adds its own.
        classes: the manifest, with ranges instead of numbers.
        labels: texts of labels; of classes, their names.
        split: int64 [num_examples], index in `splits`, the names of the manifest's.
        label: int64 [num_examples], index in `labels`.
        text: int64 [num_examples], the same for examples of the same label, of numbers too.
        groups: which images belong together, near duplicates aside.
        joined: the same with near duplicates.
        names: of the groups that are known, as they are shown.
        group: int64 [num_examples], index in `names`, or -1 if nothing is known of an image.
        units: what the known groups are, such as `patient or study`, and its plural.

    Raises:
        manifest.ManifestError: if the manifest lacks a split or a label of the table.
    """

    def __init__(
        self, examples: pa.Table, twins: Twins, dataset: manifest.Manifest, most_listed: int | None
    ) -> None:
        self.dataset, self.examples, self.twins = dataset, examples, twins
        self.most_listed = most_listed
        self.measures: dict[str, Any] = {"examples": examples.num_rows}
        self.text, _ = encode(examples["label"])
        self.classes, examples = as_classes(dataset, examples)
        self.kind = self.classes.label_kind
        self.splits, self.labels = list(dataset.splits), self.classes.label_names
        if not self.kind.one_hot:
            self.labels = sorted(pc.unique(examples["label"].cast(pa.string())).to_pylist())
        self.split = _index(examples["split"], self.splits)
        self.label = _index(examples["label"], self.labels)
        self.groups = group_images(examples)
        self.joined = group_images(examples, twins.pairs)
        names = self.groups.names
        is_known = pc.invert(pc.starts_with(names, "image:"))
        known = pc.if_else(is_known, names, pa.scalar(None, names.type))
        self.group, names = encode(pa.chunked_array([known]))
        self.names = [name.removeprefix("patient:") for name in names.to_pylist()]
        sources = [source for source in self.groups.sources if source != "image"]
        self.units = " or ".join(sources), " or ".join(map(plural_unit, sources))


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
