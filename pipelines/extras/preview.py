"""Says what a build would make and how long it would take (`--preview`), for whoever is not sure.

The build is listed and planned as always, but in a temporary folder, which is then removed.
"""

from __future__ import annotations

import dataclasses
import functools
import io
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import ClassVar

import pyarrow as pa
import pyarrow.compute as pc

from pipelines import errors
from pipelines.options import BuildOptions
from pipelines.shards.build import Job
from pipelines.shards.write import write_images
from pipelines.sources.factory import SourceOptions
from pipelines.stores.output_folder import PLAN_FILE
from tfrecord_io.decoding.rejects import in_words
from tfrecord_io.format.shard_writer import ShardWriter
from tfrecord_io.stores.folder import Folder
from tfrecord_io.terminal.address import is_remote
from tfrecord_io.terminal.flags import flag
from tfrecord_io.terminal.printing import counted, printable

# The images that are made for the estimate.
_MOST_TRIED = 32


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """Whether to build at all."""

    heading: ClassVar = "output"

    preview: bool = flag(False, "say what would be made, and about how fast, and write nothing")


def or_preview(make_dataset: Callable[..., None], options: BuildOptions) -> Callable[..., None]:
    """Returns what the command does with a plan: a preview with `--preview`, else a dataset."""
    is_wanted = options.of(Options).preview
    return functools.partial(print_preview, options.source) if is_wanted else make_dataset


def print_preview(
    source: SourceOptions,
    plan: Callable[..., AbstractContextManager[Job | None]],
    output: str,
    beam_args: Sequence[str],
) -> None:
    """Prints what a build would make, whatever its output holds; raises as `plan` does."""
    from pipelines.engine import engine

    num_processes = engine.num_processes(beam_args) or 1
    if first := _done_first(source):
        print(f"the build would first {first}; nothing was written or downloaded")
        return
    with tempfile.TemporaryDirectory(prefix="scan-tfrecords-") as scratch:
        try:
            with plan(Folder(scratch), is_trial=True) as job:
                lines = list(_lines(job, output, num_processes)) if job else []
        except errors.RefusedError as error:
            raise errors.RefusedError(f"the build would fail: {error.why}") from None
    print(*lines, "nothing was written", sep="\n")


def _done_first(options: SourceOptions) -> str | None:
    """Returns what a build does before it can list the images; None if they are on this machine."""
    folder, dataset = options.download_dir, options.kaggle_dataset
    archive = folder / f"{dataset.partition('/')[2]}.zip"
    if is_remote(options.input or ""):
        return f"list {options.input}, and then read it over the network"
    if options.source == "kaggle" and not archive.exists():
        return f"download {dataset} from Kaggle to {archive} (11 GB by default)"
    if options.source == "synthetic":
        return f"draw images in {folder}, unless they are there"
    return None


def _lines(job: Job, output: str, num_processes: int) -> Iterator[str]:
    """Yields what there is in each split, the size, and the estimate."""
    draft = job.build.draft
    with job.build.output.open(PLAN_FILE) as file:
        refs = pa.ipc.open_file(file).read_all()
    splits = refs["split"].cast(pa.string())
    for split in splits.unique().to_pylist():
        some = refs.filter(pc.equal(splits, split))
        counts = draft.label_kind.counts(some["label"].to_pylist(), draft.label_names)
        classes = zip(map(printable, draft.label_names), counts, strict=True)
        patients = counted(len(some["patient"].drop_null().unique()), "known patient")
        told = ", ".join(f"{name} {count:,}" for name, count in classes)
        yield f"{split}: {counted(some.num_rows, 'image')} of {patients}: {told}"
    size = refs.num_rows * draft.layout.stride / 1e6
    yield f"{size:,.1f} MB in {counted(len(job.todo), 'shard')} would be written to {output}"
    rows = range(0, refs.num_rows, refs.num_rows // _MOST_TRIED + 1)
    started, rejects, source = 0.0, [], job.build.source
    with source.open() as reader, ShardWriter(io.BytesIO(), draft.layout) as shard:
        for part in (rows[:1], rows):  # the first one also imports the decoders
            started = time.monotonic()
            (batch,) = refs.take(pa.array(part, pa.int64())).combine_chunks().to_batches()
            _, rejects = write_images(job.build, job.todo[0], batch, reader, shard)
    seconds = (time.monotonic() - started) * refs.num_rows / len(rows) / num_processes
    if rejects:
        why = in_words(rejects[0].reason)
        yield f"warning: {len(rejects)} of {len(rows)} images tried cannot be used, such as {why}"
    yield (
        f"about {max(seconds / 60, 0.1):.1f} minutes on {num_processes} of this machine's cores, "
        f"and some seconds to start and end; an estimate, from making {len(rows)} records now"
    )
