"""Says what a build would make (`--preview`): the images are listed and planned, nothing else."""

from __future__ import annotations

import dataclasses
from collections.abc import Sized

import pyarrow as pa
import pyarrow.compute as pc

from tfrecord_io.format.manifest import Manifest
from tfrecord_io.terminal.flags import flag
from tfrecord_io.terminal.printing import counted, printable


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """Whether to build at all."""

    preview: bool = flag(False, "say what would be made, and write nothing")


def print_plan(draft: Manifest, refs: pa.Table, tasks: Sized, output: str) -> None:
    """Prints what there is in each split, and the size; `refs` are the images of the plan."""
    splits = refs["split"].cast(pa.string())
    for split in splits.unique().to_pylist():
        some = refs.filter(pc.equal(splits, split))
        counts = draft.label_kind.counts(some["label"].to_pylist(), draft.label_names)
        classes = zip(map(printable, draft.label_names), counts, strict=True)
        patients = counted(len(some["patient"].drop_null().unique()), "known patient")
        of_classes = ", ".join(f"{name} {count:,}" for name, count in classes)
        print(f"{split}: {counted(some.num_rows, 'image')} of {patients}: {of_classes}")
    size = refs.num_rows * draft.layout.stride / 1e6
    print(f"{size:,.1f} MB in {counted(len(tasks), 'shard')} would be written to {output}")
    print("nothing was written")
