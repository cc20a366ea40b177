"""What an audit looks at, and what it finds, in words and numbers."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tfrecord_io.format.examples import FILE_NAME, recounted
from tfrecord_io.format.groups import group_images
from tfrecord_io.format.manifest import Manifest, ManifestError

if TYPE_CHECKING:
    from tfrecord_io.auditing.twins import Twins

Severity = Literal["problem", "warning", "note", "good"]

#: From the worst to the best, the order in which findings are listed.
SEVERITIES: tuple[Severity, ...] = ("problem", "warning", "note", "good")

# What to do about a finding that makes results doubtful, also as a warning.
_ADVICE = {
    "patient_leak": "results will be too good; build with --splits patient",
    "picture_leak": "results will be too good; audit --output lists copies for build --exclude",
    "near_duplicates": "results will be too good; audit --output lists copies for build --exclude",
    "label_conflict": "audit --output lists them for build --exclude",
    "near_label_conflict": "look at these and correct the label that is wrong",
    "shortcuts": "a network may learn these instead of the disease; compare its results within one "
    "image size and one JPEG quality",
}

#: Largest number of cases that a finding lists.
MAX_LISTED = 20


@dataclasses.dataclass(frozen=True)
class Finding:
    """One thing found, or one check passed.

    Attributes:
        code: fixed name of the finding, such as `patient_leak`.
        severity: `problem` (results on this data would be misleading), `warning` (they may be),
            `note` (good to know) or `good` (looked for and not found).
        title: one short sentence with the number.
        detail: what the finding means and what to do.
        count: the number in the title.
        listed: cases, up to `MAX_LISTED` unless all were asked for, each a mapping of column to
            value.
    """

    code: str
    severity: Severity = dataclasses.field(kw_only=True)
    title: str
    detail: str
    count: int = 0
    listed: tuple[Mapping[str, Any], ...] = ()


problem = functools.partial(Finding, severity="problem")
warning = functools.partial(Finding, severity="warning")
note = functools.partial(Finding, severity="note")
good = functools.partial(Finding, severity="good")


@dataclasses.dataclass(frozen=True)
class Audit:
    """The findings, the worst first, and the numbers behind them, by name.

    `copies` are rows of a table for `build --exclude`: the `path` of an image, that of the one that
    it is a copy of, and the `kind` of copy.
    """

    findings: tuple[Finding, ...]
    measures: Mapping[str, Any]
    copies: tuple[Mapping[str, str], ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Returns JSON values, as the manifest keeps them."""
        findings = [dataclasses.asdict(finding) for finding in self.findings]
        return {"measures": dict(self.measures), "findings": findings}


def alarms(audit: Mapping[str, Any]) -> list[str]:
    """Returns the findings of a manifest's audit that make results misleading, in a sentence each.

    Leaks, labels that contradict each other, and side facts that reveal the label, each with what
    to do. A sentence has no full stop.
    """
    return [
        "; ".join(filter(None, (f"the dataset's audit says: {finding['title']}", advice)))
        for finding in audit.get("findings", ())
        for advice in [_ADVICE.get(finding["code"])]
        if finding["severity"] == "problem" or (finding["severity"] == "warning" and advice)
    ]


class Examined:
    """A dataset that is audited.

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


def _index(column: pa.ChunkedArray, names: Sequence[str]) -> np.ndarray:
    index = pc.index_in(column, pa.array(list(names), pa.string()))
    if index.null_count:
        other = column.filter(pc.is_null(index))[0].as_py()
        raise ManifestError(f"{FILE_NAME} has the split or label {other!a} of another dataset")
    return index.to_numpy().astype(np.int64)
