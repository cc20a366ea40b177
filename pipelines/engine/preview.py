"""`--preview`: what a build would make, and about how long it would take.

The build is listed and planned as always, but in a temporary folder, which is then removed.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import os
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipelines import errors
from pipelines.engine.job import Job, prepared
from pipelines.options import BuildOptions
from pipelines.report import summary
from pipelines.shards.reuse import OldImages
from pipelines.shards.write import write_images
from pipelines.sources import kaggle
from pipelines.sources.factory import SourceOptions, require_reachable
from pipelines.sources.remote import RemoteDirectorySource, RemoteZipSource
from pipelines.stores import output_state
from tfrecord_io.decoding.options import Preprocessing
from tfrecord_io.decoding.rejects import in_words
from tfrecord_io.format.manifest import Manifest
from tfrecord_io.format.shard_writer import ShardWriter
from tfrecord_io.stores.folder import Folder
from tfrecord_io.terminal.address import is_remote
from tfrecord_io.terminal.printing import counted, duration, printable

# The images that are decoded for the estimate: so many, or those of so many seconds.
_MOST_TRIED, _TRIED_AT_ONCE, _SECONDS = 64, 8, 2.0


def print_preview(options: BuildOptions, num_processes: int) -> None:
    """Prints what a build would make; writes and downloads nothing that stays.

    Raises:
        errors.UserError, errors.BuildError: those of `prepared`; the output may hold another
            dataset, or the build would refuse the images.
    """
    output, is_here = options.output.output, options.workers == "here"
    require_reachable(options.source, options.workers)
    if first := _done_first(options.source):
        print(f"the build would first {first}; nothing was written")
        return
    with tempfile.TemporaryDirectory(prefix="scan-tfrecords-") as scratch:
        # Without the flags of an engine, no archive is uploaded for its workers.
        there = dataclasses.replace(options.output, output=scratch)
        options = dataclasses.replace(options, output=there, beam_args=())
        try:
            with prepared(options) as job:
                if job is None or _is_complete(job, output, overwrite=options.output.overwrite):
                    summary.print_complete(output)
                    return
                with job.build.output.open(output_state.PLAN_FILE) as file:
                    refs = pa.ipc.open_file(file).read_all()
                seconds, tried, rejected = _try_some(job, refs)
        except errors.RefusedError as error:
            told = str(error).replace(scratch, output)
            raise errors.RefusedError(f"the build would fail: {told}") from None
    draft = job.build.draft
    print(summary.in_columns(_table(draft, refs)))
    size = f"{refs.num_rows * draft.layout.stride / 1e6:,.1f} MB"
    print(f"{size} in {counted(len(job.todo), 'shard')} would be written to {output}")
    for reason, count in rejected.items():
        print(f"warning: {count} of the {tried} images tried: {in_words(reason)}")
    where = f"{counted(num_processes, 'process', 'processes')} of this machine"
    time_left = duration(seconds * refs.num_rows / (num_processes if is_here else 1))
    print(
        f"about {time_left} for {where if is_here else 'one core of the cluster'}, and some "
        f"seconds to start and to finish: an estimate, from making {counted(tried, 'record')} now\n"
        "nothing was written"
    )


def _done_first(options: SourceOptions) -> str | None:
    """Returns what a build does before it can list the images; None if they are on this machine."""
    given, folder = options.input, options.download_dir
    if given and is_remote(given):
        if options.source == "archive":
            size, what = RemoteZipSource(given).prepare(Path()).file.size, ""
        else:
            sizes = [member.size for member in RemoteDirectorySource(given).members()]
            size, what = sum(sizes), f"{counted(len(sizes), 'file')}, "
        return f"list and then read {given}: {what}{size / 1e6:,.1f} MB"
    archive = folder / f"{options.kaggle_dataset.partition('/')[2]}.zip"
    if options.source == "kaggle" and not archive.exists():
        size = ", 11 GB," if options.kaggle_dataset == kaggle.DEFAULT_DATASET else ""
        return f"download {options.kaggle_dataset}{size} from Kaggle to {archive}"
    if options.source == "synthetic":
        return f"draw {counted(options.num_examples, 'scan')} in {folder}, unless they are there"
    if options.source == "fashion_mnist":
        start = "" if given else f"download {options.fashion_mnist_url}, 31 MB, and "
        return f"{start}unpack 70,000 images in {folder}, unless they are there"
    return None


def _is_complete(job: Job, output: str, *, overwrite: bool) -> bool:
    """Returns whether the real output is complete; raises UserError if it is another dataset."""
    return not overwrite and output_state.is_complete(Folder(output), job.build.draft.options)


def _try_some(job: Job, refs: pa.Table) -> tuple[float, int, collections.Counter[str]]:
    """Makes some of the records as a worker does, and throws them away.

    Returns:
        the seconds for one, how many were tried, and the images that were rejected by reason.
    """
    build = job.build
    rows = np.linspace(0, refs.num_rows - 1, min(refs.num_rows, _MOST_TRIED)).astype(np.int64)
    rejected: collections.Counter[str] = collections.Counter()
    pixels = Preprocessing.from_dict(build.draft.preprocessing)
    with contextlib.ExitStack() as stack:
        enter = stack.enter_context
        reader, file = enter(build.source.open()), enter(Path(os.devnull).open("wb"))
        shard = enter(ShardWriter(file, build.draft.layout))
        old = enter(OldImages(build.reuse, build.output, pixels)) if build.reuse else None

        def make(some: np.ndarray) -> list[str]:
            (batch,) = refs.take(pa.array(some)).combine_chunks().to_batches()
            _, rejects = write_images(build, job.todo[0], batch, reader, old, shard)
            return [reject.reason for reject in rejects]

        make(rows[:1])  # the first one also imports the decoders
        tried, started = 0, time.monotonic()
        while tried < len(rows) and time.monotonic() < started + _SECONDS:
            some = rows[tried : tried + _TRIED_AT_ONCE]
            rejected.update(make(some))
            tried += len(some)
        return (time.monotonic() - started) / tried, tried, rejected


def _table(draft: Manifest, refs: pa.Table) -> list[list[str]]:
    """Returns the rows of a table of the images by split and class, with a heading."""
    kind, names = draft.label_kind, draft.label_names
    classes = [] if kind.is_number else [printable(name) for name in names]
    rows = [["split", *classes, "images", "patients"]]
    splits = refs["split"].cast(pa.string())
    for split in splits.unique().to_pylist():
        some = refs.filter(pc.equal(splits, split))
        counts = kind.counts(some["label"].to_pylist(), names) if classes else ()
        num_patients = len(some["patient"].drop_null().unique())
        numbers = (*counts, some.num_rows, num_patients)
        rows.append([split, *(f"{number:,}" for number in numbers)])
    return rows
