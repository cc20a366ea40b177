"""Writes shards, and decodes the images of each one at a time."""

from __future__ import annotations

import contextlib
import functools
import warnings
from collections.abc import Iterator, Mapping, Sequence
from concurrent import futures
from multiprocessing.sharedctypes import Synchronized
from typing import IO, Any

import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

from pipelines import errors, workers
from pipelines.listing.refs import OTHER, ImageRef, RejectedFile, iterate_refs
from pipelines.planning import plan
from pipelines.shards.build import Build, Create, Sidecar, rows_name
from pipelines.sources.source import Reader, read_in_order
from pipelines.stores.output_folder import PLAN_FILE
from tfrecord_io.decoding import augment, dicom, preprocess
from tfrecord_io.decoding.options import Preprocessing
from tfrecord_io.decoding.rejects import Reject
from tfrecord_io.format import schema, shard_writer
from tfrecord_io.format.examples import table_of
from tfrecord_io.stores.folder import Folder

# Largest number of files waiting to be finished, besides the current one: those of one task.
_MOST_UNFINISHED = 3


def write_shard(build: Build, task: plan.ShardTask, reader: Reader, create: Create) -> Sidecar:
    """Decodes the images of one task into one shard, one image at a time.

    The files appear in this order, each only when it is complete: shard, rows of the examples
    table, sidecar. So a sidecar that fits the build proves that the other two files exist.

    Returns:
        the sidecar that was written.

    Raises:
        errors.BuildError: if the source is gone or has changed, or this worker's Pillow or libjpeg
            differs from the launcher's.
    """
    draft, layout = build.draft, build.draft.layout
    _check_decoder(draft.versions)
    with build.output.open(PLAN_FILE) as file:
        planned = plan.read_task_refs(file, task, draft.fingerprint)
    with (
        create(task.shard_name) as file,
        shard_writer.ShardWriter(file, layout) as shard,
    ):
        rows, rejects = _write_images(build, task, planned, reader, shard)
    places = pa.array([row["place"] for row in rows], pa.int64())
    others = {
        field.name.removeprefix(OTHER): planned[field.name].take(places)
        for field in planned.schema
        if field.name.startswith(OTHER)
    }
    table = table_of(rows, shard.facts(), others)
    with create(rows_name(task)) as file:
        pq.write_table(table, file)
    sidecar = Sidecar(
        fingerprint=draft.fingerprint,
        shard=task.shard_name,
        num_refs=task.num_refs,
        num_examples=len(rows),
        num_bytes=len(rows) * layout.stride,
        sha256=shard.sha256,
        label_counts=draft.label_kind.counts([row["label"] for row in rows], draft.label_names),
        rejects=tuple(rejects),
        statistics=shard.statistics,
    )
    sidecar.write(create)
    return sidecar


class WriteBehind:
    """Finishes files in a thread, which waits for the disk or uploads to the store.

    Files appear in the order in which they were written. After one failure, later files are
    discarded, so no sidecar outlives its shard.
    """

    def __init__(self, folder: Folder) -> None:
        self._folder = folder
        self._thread = futures.ThreadPoolExecutor(1, thread_name_prefix="write-behind")
        self._unfinished: list[futures.Future[None]] = []

    @contextlib.contextmanager
    def create(self, name: str) -> Iterator[IO[bytes]]:
        """Opens a file for writing, which appears later, and only when it is complete.

        Raises:
            OSError, errors.BuildError: if an earlier file could not be finished.
        """
        with contextlib.ExitStack() as block:
            yield block.enter_context(self._folder.create(name))
            earlier = self._unfinished[-1:]
            self._unfinished.append(self._thread.submit(_finish, block.pop_all(), earlier))
        while len(self._unfinished) > _MOST_UNFINISHED:
            self._unfinished[0].result()
            del self._unfinished[0]

    def wait(self) -> None:
        """Waits until every file is finished; raises the error of one that could not be."""
        unfinished, self._unfinished = self._unfinished, []
        futures.wait(unfinished)
        for future in unfinished:
            future.result()

    def close(self) -> None:
        """Waits for the thread to finish its files, and ends it."""
        self._thread.shutdown()


def _finish(block: contextlib.ExitStack, earlier: list[futures.Future[None]]) -> None:
    """Ends the block of a file, with the error of an earlier file if that failed."""
    with block:
        for future in earlier:
            future.result()


class TaskWriter(contextlib.ExitStack):
    """Writes one task after another; it is closed by `close` or at the end of a `with` block.

    It keeps the source open, and makes a shard while the files of earlier tasks reach the disk.
    """

    def __init__(self, build: Build) -> None:
        super().__init__()
        self._build = build
        self._reader = self.enter_context(build.source.open())
        self._files = self.enter_context(contextlib.closing(WriteBehind(build.output)))

    def write(self, task: plan.ShardTask) -> Sidecar | None:
        """Writes a shard, and returns its sidecar; None if it is there, as if a task is retried.

        Its files may still be unfinished on return; call `wait` before relying on them. Both raise
        `errors.BuildError` as `write_shard` does, or if the output cannot be written.
        """
        if self._build.read_sidecar(task) is not None:
            return None
        with errors.clear_write_errors(self._build.output.root):
            return write_shard(self._build, task, self._reader, self._files.create)

    def wait(self) -> None:
        """Waits until the files of all tasks are finished."""
        with errors.clear_write_errors(self._build.output.root):
            self._files.wait()


def write_in_processes(tasks: Sequence[plan.ShardTask], build: Build, num_processes: int) -> None:
    """Writes shards in worker processes of this machine; returns when all of them are written.

    Each worker takes the next task that no other worker has taken.

    Raises:
        errors.BuildError: the first error of a worker; the others finish the shards they have
            begun and take no more tasks. Also if a worker died; that ends the others at once.
        KeyboardInterrupt: after Ctrl-C, once all workers are killed.
    """
    # The largest first, so that no worker is left alone with a large one at the end.
    tasks = sorted(tasks, key=lambda task: task.num_refs, reverse=True)
    num_processes = min(num_processes, len(tasks))
    calls = [(build, tasks)] * num_processes
    list(workers.results(_write_next, calls, num_processes, workers.shared_value("q", 0)))


def _write_next(build: Build, tasks: Sequence[plan.ShardTask]) -> None:
    """Takes the next task and writes it, until all tasks are taken."""
    num_taken: Synchronized[int] = workers.shared
    try:
        with TaskWriter(build) as writer:
            while True:
                with num_taken.get_lock():
                    place = num_taken.value
                    num_taken.value += 1
                if place >= len(tasks):
                    break
                writer.write(tasks[place])
            writer.wait()
    except BaseException:
        num_taken.value = len(tasks)  # so that the other workers stop
        raise


def _write_images(
    build: Build,
    task: plan.ShardTask,
    planned: pa.RecordBatch,
    reader: Reader,
    shard: shard_writer.ShardWriter,
) -> tuple[list[dict[str, Any]], list[RejectedFile]]:
    """Decodes the planned images, rows of a plan, into a shard.

    Returns:
        the examples, by the names of `examples.SCHEMA` and with their `place` in the plan;
        and the rejected images.
    """
    draft, preprocessing = build.draft, Preprocessing.from_dict(build.draft.preprocessing)
    refs, variants = list(iterate_refs(planned)), planned["variant"].to_pylist()
    paths = [ref.image_path for ref in refs]
    if "variants" in draft.counts:
        paths = [augment.variant_path(path, n) for path, n in zip(paths, variants, strict=True)]
    texts = list({ref.label for ref in refs})
    labels = dict(zip(texts, draft.label_kind.vectors(texts, draft.label_names), strict=True))
    parts = ((ref.member, functools.partial(_read_part, reader, ref)) for ref in refs)
    reads = read_in_order(reader, parts)
    planned_rows = zip(refs, reads, variants, map(schema.image_key, paths), strict=True)
    examples: list[dict[str, Any]] = []
    rejects: list[RejectedFile] = []
    with warnings.catch_warnings():
        # Pillow warns about odd metadata; an image that is unusable is rejected in any case.
        warnings.simplefilter("ignore")
        for place, (ref, read, variant, key) in enumerate(planned_rows):
            try:
                with errors.clear_read_errors(ref.source_path):
                    data = read()
                    image = preprocess.decode_image(data, preprocessing, ref.frame)
            except Reject as reject:
                # A file is rejected only once, not again for each of its variants.
                if not variant:
                    # A detail may repeat a name for which a code stands.
                    detail = reject.detail if ref.name is None else ""
                    rejects.append(RejectedFile(ref.image_name, reject.reason, detail))
                continue
            facts = image._asdict()
            pixels = facts.pop("pixels")
            if variant:
                pixels = augment.vary(pixels, draft.image_shape, key, image.box)
            shard.write(pixels, labels[ref.label], key, image.box)
            examples.append(
                facts
                | {
                    "place": place,
                    "split": task.split,
                    "shard": task.shard_name,
                    "row": len(examples),
                    "key": key,
                    "variant": variant,
                    "label": ref.label,
                    "patient": ref.patient,
                    "path": ref.image_name,
                    "file_bytes": ref.size,
                    # Of a file of several images only a part may be at hand.
                    "file_xxh3": None if ref.frame else xxhash.xxh3_128_hexdigest(data),
                    "pixels_xxh3": xxhash.xxh3_128_hexdigest(pixels),
                }
            )
    return examples, rejects


def _read_part(reader: Reader, ref: ImageRef) -> bytes | dicom.Frame:
    """Reads a file, or of several frames the wanted one."""
    if not ref.frame:
        return reader.read(ref.member)
    with reader.open(ref.member) as file:
        return dicom.read_frame(file, ref.frame)


def _check_decoder(planned: Mapping[str, str]) -> None:
    try:
        here = preprocess.decoder_versions(with_dicom="pydicom" in planned)
    except ModuleNotFoundError as error:
        raise errors.BuildError(f"this worker cannot decode: {error}") from None
    if here != planned:
        raise errors.BuildError(
            f"this worker decodes with {here}, but the launcher planned with {planned}; install "
            "the launcher's versions on the workers, because other versions give other pixels"
        )
