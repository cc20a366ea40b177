"""A dataset as the checks of an audit see it, and what a check from beside the audit is."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tfrecord_io.auditing.findings import Finding
from tfrecord_io.auditing.twins import Twins
from tfrecord_io.format.examples import FILE_NAME, recounted
from tfrecord_io.format.groups import group_images
from tfrecord_io.format.manifest import Manifest, ManifestError
from tfrecord_io.pages.page import Section


class Examined:
    """A dataset that is audited. In its columns, numbers count as their ranges.

    Attributes:
        dataset: the manifest; its audit is not used.
        examples: the table that `examples.audited` returns.
        twins: the duplicates among these examples.
        most_listed: largest number of cases that a finding lists; None for all.
        measures: the numbers behind the findings; each check adds its own.
        classes: the manifest with the counts of `examples`; `kind` is its kind of label.
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
        self.classes, self.kind = recounted(dataset, examples), dataset.label_kind
        self.splits, self.labels = list(dataset.splits), dataset.label_names
        if not self.kind.one_hot:
            self.labels = sorted(pc.unique(examples["label"]).to_pylist())
        self.split = _index(examples["split"], self.splits)
        self.label = _index(examples["label"], self.labels)
        self.groups = group_images(examples)
        self.joined = group_images(examples, twins.pairs)


class Check(NamedTuple):
    """A check that a command adds to the audit's own, as functions.

    Attributes:
        find: yields its findings, and adds its numbers to the measures.
        add_arguments: adds the flags of its limits to the audit command.
        violations: returns a line for each of these limits that the measures exceed.
        section: returns its part of the dataset's page, from the manifest, the measures, and the
            table that `examples.audited` returns.
    """

    find: Callable[[Examined], Iterator[Finding]]
    add_arguments: Callable[[argparse.ArgumentParser], object]
    violations: Callable[[argparse.Namespace, Mapping[str, Any]], list[str]]
    section: Callable[[Manifest, Mapping[str, Any], pa.Table], Section]


def _index(column: pa.ChunkedArray, names: Sequence[str]) -> np.ndarray:
    index = pc.index_in(column, pa.array(list(names), pa.string()))
    if index.null_count:
        other = column.filter(pc.is_null(index))[0].as_py()
        raise ManifestError(f"{FILE_NAME} has the split or label {other!a} of another dataset")
    return index.to_numpy().astype(np.int64)
