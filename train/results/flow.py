"""The flow of images and patients from the files of the source to the figures of a run.

As the diagrams that STARD 2015 and CONSORT 2010 ask of a study: who was there, who was left out at
which step and why, and who stands behind the result.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from tfrecord_io.groups import plural_unit
from tfrecord_io.printing import counted
from train.data.dataset import Dataset
from train.kinds.words import MAX_CLASSES

# What a split was for, if the figures are about it.
_MEASURED, _IN_FOLDS, _NO_USE = "measured", "divided into folds", "not used"


class Box(NamedTuple):
    """Some images at one step: what they are, how many, and more about them.

    `left_out` tells why some are not in the next step, and how many. `is_measured` tells whether
    the figures are about them.
    """

    title: str
    lines: Sequence[str]
    left_out: Sequence[tuple[str, int]] = ()
    is_measured: bool = False


def flow_of(
    dataset: Dataset, metrics: Mapping[str, Any], *, in_folds: Sequence[str] = (), is_own: bool
) -> list[list[Box]]:
    """Returns the steps of the flow; the boxes of a step stand beside each other.

    Args:
        dataset: that was measured.
        metrics: content of metrics.json; empty if nothing was measured.
        in_folds: splits that were divided into folds.
        is_own: whether the network was trained on this dataset.
    """
    manifest, seen = dataset.manifest, []
    split = dataset.column("split").cast(pa.string())
    table = pa.table({name: dataset.column(name) for name in ("variant", "patient")})
    if metrics.get("seen_images") and not metrics.get("include_seen"):
        seen = [("seen by the network before, or of the same patients", metrics["seen_images"])]

    def box(title: str, num_examples: int, rows: pa.Table, *lines: str) -> Box:
        copies = pc.sum(pc.greater(rows["variant"], 0)).as_py() or 0
        more = [f"and {counted(copies, 'augmented copy', 'augmented copies')}"] if copies else []
        people = pc.count_distinct(rows["patient"]).as_py()
        left_out = seen if title == metrics.get("split") else ()
        is_measured = not {_MEASURED, _IN_FOLDS}.isdisjoint(lines)
        told = [_people(num_examples - copies, people), *more, *lines]
        return Box(title, told, left_out, is_measured)

    uses = _uses(metrics, in_folds, is_own)
    parts = [
        box(name, part.num_examples, table.filter(pc.equal(split, name)), uses.get(name, _NO_USE))
        for name, part in manifest.splits.items()
    ]
    steps = [[box("dataset", manifest.num_examples, table)], parts]
    if files := manifest.counts.get("files"):
        # Copies, which are not files, are counted below zero.
        left_out = [(why, count) for why, count in manifest.ledger[1:] if count > 0]
        steps.insert(0, [Box("source", [counted(files, "file")], left_out)])
    return [*steps, [_figures(metrics)]] if metrics else steps


def _uses(metrics: Mapping[str, Any], in_folds: Sequence[str], is_own: bool) -> dict[str, str]:
    """Returns what each split was for, by name; others were not used."""
    if in_folds:
        return dict.fromkeys(in_folds, _IN_FOLDS)
    uses = {str(metrics.get("split")): _MEASURED}
    if is_own:
        uses = {"train": "trained on", "val": "watched during training"} | uses
        if metrics.get("calibration"):
            uses["val"] = "chose temperature and thresholds"
    return uses


def _figures(metrics: Mapping[str, Any]) -> Box:
    """Returns the images behind the figures, and those of each label unless there are many."""
    lines = [_people(metrics["num_examples"], metrics["num_patients"] or 0)]
    groups, unit = metrics["label_groups"], metrics["bootstrap_by"]
    if groups and len(groups) <= MAX_CLASSES:
        for name, count in metrics["label_counts"].items():
            behind = f" of {counted(groups[name], unit, plural_unit(unit))}"
            lines.append(f"{name}: {counted(count, 'image')}{behind if unit != 'image' else ''}")
    return Box(f"measured: {metrics['split']}", lines, is_measured=True)


def _people(num_images: int, num_patients: int) -> str:
    people = f" of {counted(num_patients, 'patient')}" if num_patients else ""
    return f"{counted(num_images, 'image')}{people}"
