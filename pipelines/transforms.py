"""The two steps of the job: write a shard, and finish the dataset.

Each is a plain function with its Beam transform beside it. Both leave their results in files and
are harmless to repeat: an engine may retry a task, or run it twice at once.
"""

from __future__ import annotations

import collections
import contextlib
import csv
import dataclasses
import functools
import io
import json
import platform
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from typing import IO, Any, NamedTuple

import apache_beam as beam
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import xxhash

from pipelines import drops, errors, plan
from pipelines.sources import prefetch
from pipelines.sources.listing import ImageRef, RejectedFile, iterate_refs
from pipelines.sources.source import Reader, Source
from pipelines.splits import DROPPED_SCHEMA
from pipelines.storage import BUILD_DIR, Storage, WriteBehind
from tfrecord_io import (
    audit,
    augment,
    manifest,
    near_duplicates,
    preprocess,
    schema,
    shard_writer,
    shards,
    tfds_metadata,
    twins,
)
from tfrecord_io.printing import csv_cell

#: The references, a record batch a task; and beside it the tasks and what decides the bytes.
PLAN_FILE = f"{BUILD_DIR}/plan.arrow"
PLAN_JSON = f"{BUILD_DIR}/plan.json"
FAILURE_FILE = f"{BUILD_DIR}/failure.json"

#: A row an example of examples.parquet. The hashes are XXH3-128: they tell whether two files or
#: two pictures are the same, they do not protect against an adversary.
EXAMPLE_SCHEMA = pa.schema(
    [
        ("split", pa.string()),
        ("shard", pa.string()),
        ("row", pa.int32()),
        ("key", pa.string()),
        ("label", pa.string()),
        ("patient", pa.string()),
        ("path", pa.string()),
        ("width", pa.int32()),
        ("height", pa.int32()),
        ("mode", pa.string()),
        ("file_format", pa.string()),
        ("file_bytes", pa.int64()),
        ("quantization", pa.int32()),
        ("file_xxh3", pa.string()),
        ("pixels_xxh3", pa.string()),
        ("brightness", pa.float32()),
        ("white_border", pa.float32()),
        ("perceptual_hash", pa.binary(near_duplicates.HASH_LENGTH)),
        # 0 is the image itself; of an augmented copy, what is known of the file is that of its
        # original.
        ("variant", pa.int32()),
    ]
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Build:
    """All that a worker must know, besides its task.

    Attributes:
        name: what the dataset is called.
        output: folder or URL the dataset goes to.
        source: where the images come from.
        preprocessing: how a file becomes pixels.
        label_names: class names in the order of their indices.
        identity: what decides the bytes, by name.
        max_reject_fraction: more rejects than this share of the images fail the build.
        num_files: files seen in the source.
        copies: files found twice.
        ignored: files that are no data, by reason.
        over_limit: images left out by the limit.
        rejected_files: images already rejected while listing.
        num_variants: augmented copies that are planned.
        drops: what happens to pictures that are there more than once.
        notes: what the user should know about the splits.
    """

    name: str
    output: str
    source: Source
    preprocessing: preprocess.Preprocessing
    label_names: tuple[str, ...]
    identity: Mapping[str, Any]
    max_reject_fraction: float
    num_files: int
    copies: int
    ignored: Mapping[str, int]
    over_limit: int
    rejected_files: tuple[RejectedFile, ...]
    num_variants: int = 0
    drops: drops.DropOptions = drops.DropOptions()  # noqa: RUF009 - frozen
    notes: tuple[str, ...] = ()

    @property
    def storage(self) -> Storage:
        return Storage(self.output)

    @property
    def fingerprint(self) -> str:
        return plan.fingerprint(self.identity)

    @property
    def layout(self) -> schema.RecordLayout:
        return schema.RecordLayout(
            image_shape=self.preprocessing.image_shape, num_classes=len(self.label_names)
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sidecar:
    """What is known of one written shard; lies beside it as JSON.

    Attributes:
        fingerprint: of the build it belongs to.
        shard: name of the shard file.
        num_refs: images planned into it.
        num_examples: records in it.
        num_bytes: size of the shard file.
        sha256: hexadecimal digest of the shard file.
        label_counts: examples of each class, in the order of the label names.
        rejects: the images left out.
        num_dropped: records that were taken out again as duplicates.
    """

    fingerprint: str
    shard: str
    num_refs: int
    num_examples: int
    num_bytes: int
    sha256: str
    label_counts: tuple[int, ...]
    rejects: tuple[RejectedFile, ...]
    num_dropped: int = 0

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self), indent=1) + "\n"

    @classmethod
    def from_json(cls, text: str | bytes) -> Sidecar:
        """Parses what `to_json` returned.

        Raises:
            ValueError: if it is something else.
        """
        try:
            content = json.loads(text)
            content["label_counts"] = tuple(content["label_counts"])
            content["rejects"] = tuple(RejectedFile(**reject) for reject in content["rejects"])
            return cls(**content)
        except (KeyError, TypeError) as error:
            raise ValueError(f"no sidecar of a shard: {error!r}") from error


def find_finished(build: Build, tasks: Iterable[plan.ShardTask]) -> dict[int, Sidecar]:
    """Returns the sidecars of the tasks whose shard is already there, by task index."""
    names = set(build.storage.names())
    there = [task for task in tasks if shards.sidecar_name(task.shard_name) in names]
    found = build.storage.map(functools.partial(_read_sidecar, build), there)
    return {
        task.index: sidecar
        for task, sidecar in zip(there, found, strict=True)
        if sidecar is not None
    }


def write_shard(
    build: Build,
    task: plan.ShardTask,
    reader: Reader,
    create: Callable[[str], contextlib.AbstractContextManager[IO[bytes]]] | None = None,
) -> Sidecar:
    """Decodes the images of one task into one shard, an image at a time.

    Files appear in this order, each whole: shard, rows of the examples table, sidecar. So a
    sidecar that fits the build proves the other two.

    Args:
        build: the whole build.
        task: the shard to write.
        reader: of the source, open.
        create: opens a file by its name, as the storage's `create` does, which is the default.

    Raises:
        errors.BuildError: if the source is gone or has changed, or Pillow is another version.
    """
    _check_decoder(build)
    storage, layout = build.storage, build.layout
    create = create or storage.create
    with storage.open_arrow(PLAN_FILE) as file:
        planned = plan.read_task_refs(file, task, build.fingerprint)
    refs, variants = list(iterate_refs(planned)), planned["variant"].to_pylist()
    paths = [ref.path for ref in refs]
    if build.num_variants:
        paths = [augment.variant_path(path, n) for path, n in zip(paths, variants, strict=True)]
    keys = [schema.image_key(path) for path in paths]
    label_indices = {name: index for index, name in enumerate(build.label_names)}
    examples: list[_Example] = []
    rejects: list[RejectedFile] = []
    with (
        create(task.shard_name) as file,
        shard_writer.ShardWriter(file, layout) as shard,
        warnings.catch_warnings(),
    ):
        # Pillow warns of odd metadata; what matters about an image is its reject, if it is one.
        warnings.simplefilter("ignore")
        reads = prefetch.read_in_order(reader, refs)
        for (ref, read), variant, key in zip(reads, variants, keys, strict=True):
            try:
                data = _read(read, ref)
                pixels, *original = preprocess.decode_image(data, build.preprocessing)
            except preprocess.Reject as reject:
                # A file is rejected once, whatever was to be made of it.
                if not variant:
                    rejects.append(
                        RejectedFile(
                            source_path=ref.source_path, reason=reject.reason, detail=reject.detail
                        )
                    )
                continue
            if variant:
                pixels = augment.vary(pixels, layout.image_shape, key)
            shard.write(pixels, label_indices[ref.label], key)
            hashes = xxhash.xxh3_128_hexdigest(data), xxhash.xxh3_128_hexdigest(pixels)
            examples.append(_Example(ref, key, variant, *original, *hashes))
    with create(_rows_name(task)) as file:
        pq.write_table(_examples_table(task, examples, shard.facts()), file)
    label_counts = collections.Counter(example.ref.label for example in examples)
    sidecar = Sidecar(
        fingerprint=build.fingerprint,
        shard=task.shard_name,
        num_refs=task.num_refs,
        num_examples=len(examples),
        num_bytes=len(examples) * layout.stride,
        sha256=shard.sha256,
        label_counts=tuple(label_counts[name] for name in build.label_names),
        rejects=tuple(rejects),
    )
    with create(shards.sidecar_name(task.shard_name)) as file:
        file.write(sidecar.to_json().encode())
    return sidecar


def _read(read: Callable[[], bytes], ref: ImageRef) -> bytes:
    try:
        return read()
    except OSError as error:
        raise errors.BuildError(
            f"cannot read {ref.source_path} from the source: {error.strerror or error}"
        ) from error


class WriteShards(beam.PTransform):
    """Turns shard tasks into shard files, one task an element, and yields (name, task index)."""

    def __init__(self, build: Build) -> None:
        super().__init__()
        self._build = build

    def expand(self, tasks: beam.PCollection) -> beam.PCollection:
        return tasks | beam.ParDo(_WriteShardFn(self._build))


class _WriteShardFn(beam.DoFn):
    """Keeps the source open, and decodes for one task while the files of the last are finished."""

    def __init__(self, build: Build) -> None:
        self._build = build

    def setup(self) -> None:
        self._open = contextlib.ExitStack()
        self._reader = self._open.enter_context(self._build.source.open())
        self._files = self._open.enter_context(contextlib.closing(WriteBehind(self._build.storage)))

    def process(self, task: plan.ShardTask) -> Iterator[tuple[str, int]]:
        # A retried task of an engine, or one of a resumed build, may be done already.
        if _read_sidecar(self._build, task) is None:
            with _clear_write_errors(self._build.output):
                write_shard(self._build, task, self._reader, self._files.create)
        yield self._build.name, task.index

    def finish_bundle(self) -> None:
        # What was yielded counts only if the bundle ends well.
        with _clear_write_errors(self._build.output):
            self._files.wait()

    def teardown(self) -> None:
        self._open.close()


def finish_dataset(build: Build) -> None:
    """Counts what came of every image, audits, and writes the tables, the card and the manifest.

    It reads files, not an engine's counters. If too many images were rejected, or a policy says
    so, it writes no manifest but the evidence and a note of the failure, which `read_failure`
    returns.

    Raises:
        errors.BuildError: if a shard is missing or an image is unaccounted for.
    """
    planned = json.loads(build.storage.read(PLAN_JSON))
    plan.require_own(planned["fingerprint"], build.fingerprint)
    tasks = [plan.ShardTask(*values) for values in planned["tasks"]]
    sidecars = _require_sidecars(build, tasks)
    rejects = [*build.rejected_files, *(r for sidecar in sidecars for r in sidecar.rejects)]
    rejects.sort(key=lambda reject: (reject.source_path, reject.reason))
    _write_listing(build.storage, manifest.REJECTS_FILE_NAME, map(dataclasses.astuple, rejects))
    if failure := _judge(build, tasks, rejects) or _judge_classes(build, tasks, sidecars):
        _write_failure(build.storage, failure)
        return
    _write_examples(build.storage, tasks)
    _require_unique_keys(build.storage)
    dropped = _leave_out_duplicates(build, tasks, sidecars)
    if dropped.num_rows:
        sidecars = _require_sidecars(build, tasks)
        _write_examples(build.storage, tasks)
        rows = (tuple(row.values()) for row in dropped.to_pylist())
        _write_listing(build.storage, manifest.DROPPED_FILE_NAME, rows)
    counts = _account(build, sidecars, len(rejects), dropped)
    finished = _make_manifest(build, tasks, sidecars, counts, rejects)
    finished = _audit(build, finished, rejects, dropped)
    if failure := drops.judge(finished.audit["measures"], build.drops):
        report = build.storage.path(manifest.REPORT_FILE_NAME)
        _write_failure(build.storage, f"{failure}. See {report}")
        return
    for name, text in tfds_metadata.describe(finished).items():
        with build.storage.create(name) as file:
            file.write(text.encode())
    with build.storage.create(manifest.FILE_NAME) as file:
        file.write(finished.to_json().encode())


class FinishDataset(beam.PTransform):
    """Finishes the dataset once all tasks are done."""

    def __init__(self, build: Build) -> None:
        super().__init__()
        self._build = build

    def expand(self, done: beam.PCollection) -> beam.PCollection:
        return (
            done
            | "Gather" >> beam.GroupByKey()
            | "Finish" >> beam.Map(lambda _, build: _finish(build), build=self._build)
        )


def _finish(build: Build) -> None:
    with _clear_write_errors(build.output):
        finish_dataset(build)


@contextlib.contextmanager
def _clear_write_errors(path: str) -> Iterator[None]:
    """Turns an error of the output's file system, such as a full disk, into a `BuildError`."""
    try:
        yield
    except OSError as error:
        raise errors.BuildError(f"cannot write {path}: {error.strerror or error}") from error


def read_failure(storage: Storage) -> str | None:
    """Returns why the build failed, if `finish_dataset` found that it did."""
    try:
        return json.loads(storage.read(FAILURE_FILE))["message"]
    except FileNotFoundError:
        return None


class _Example(NamedTuple):
    """What is known of an example by itself; the names are those of `EXAMPLE_SCHEMA`."""

    ref: ImageRef
    key: str
    variant: int
    width: int
    height: int
    mode: str
    file_format: str
    quantization: int
    file_xxh3: str
    pixels_xxh3: str


def _examples_table(
    task: plan.ShardTask, examples: Sequence[_Example], facts: Mapping[str, np.ndarray]
) -> pa.Table:
    """Returns the rows of a shard with what is the same in all, and what is found for all."""
    columns: dict[str, Any] = {
        name: [getattr(example, name) for example in examples] for name in _Example._fields
    }
    refs = columns.pop("ref")
    columns |= facts
    columns |= {
        "split": [task.split] * len(refs),
        "shard": [task.shard_name] * len(refs),
        "row": range(len(refs)),
        "label": [ref.label for ref in refs],
        "patient": [ref.patient for ref in refs],
        "path": [ref.source_path for ref in refs],
        "file_bytes": [ref.size for ref in refs],
        "perceptual_hash": [bits.tobytes() for bits in facts["perceptual_hash"]],
    }
    return pa.Table.from_pydict(columns, EXAMPLE_SCHEMA)


def _rows_name(task: plan.ShardTask) -> str:
    return f"{BUILD_DIR}/{task.shard_name.removesuffix('.tfrecord')}.parquet"


def _read_sidecar(build: Build, task: plan.ShardTask) -> Sidecar | None:
    """Returns a task's sidecar if it belongs to this build and its files are there."""
    try:
        sidecar = Sidecar.from_json(build.storage.read(shards.sidecar_name(task.shard_name)))
    except (FileNotFoundError, ValueError):
        return None
    fits = (
        sidecar.fingerprint == build.fingerprint
        and sidecar.num_refs == task.num_refs
        and build.storage.size(task.shard_name) == sidecar.num_bytes
        and build.storage.exists(_rows_name(task))
    )
    return sidecar if fits else None


def _require_sidecar(build: Build, task: plan.ShardTask) -> Sidecar:
    sidecar = _read_sidecar(build, task)
    if sidecar is None:
        raise errors.BuildError(
            f"{build.storage.path(task.shard_name)} was written but is not there, or not as its "
            "sidecar says; run the same command again to write it anew"
        )
    return sidecar


def _require_sidecars(build: Build, tasks: Iterable[plan.ShardTask]) -> list[Sidecar]:
    return list(build.storage.map(functools.partial(_require_sidecar, build), tasks))


def _check_decoder(build: Build) -> None:
    here, planned = preprocess.decoder_versions(), build.identity["decoder"]
    if here != planned:
        raise errors.BuildError(
            f"this worker decodes with {here}, the launcher planned with {planned}; install the "
            "launcher's versions on the workers, so that all shards hold the same kind of pixels"
        )


def _account(
    build: Build, sidecars: Sequence[Sidecar], num_rejects: int, dropped: pa.Table
) -> dict[str, Any]:
    """Returns the ledger of all files seen.

    Raises:
        errors.BuildError: if what came in is not what went out.
    """
    num_examples = sum(sidecar.num_examples for sidecar in sidecars)
    num_variants = _count_variants(build.storage) if build.num_variants else 0
    counts = {
        "files": build.num_files,
        "examples": num_examples,
        # They are examples, and no files.
        **({"variants": num_variants} if build.num_variants else {}),
        "rejects": num_rejects,
        "copies": build.copies,
        "over_limit": build.over_limit,
        "dropped": dict(sorted(collections.Counter(dropped["reason"].to_pylist()).items())),
        "ignored": dict(build.ignored),
    }
    accounted = (
        num_examples
        - num_variants
        + num_rejects
        + build.copies
        + build.over_limit
        + dropped.num_rows
        + sum(build.ignored.values())
    )
    if accounted != build.num_files:
        raise errors.BuildError(
            f"{build.num_files:,} files went in and {accounted:,} are accounted for: {counts}; "
            "no manifest was written; this is a bug, please report it"
        )
    return counts


def _judge(
    build: Build, tasks: Sequence[plan.ShardTask], rejects: Sequence[RejectedFile]
) -> str | None:
    """Returns why the dataset must not be used, or None if it may."""
    table = build.storage.path(manifest.REJECTS_FILE_NAME)
    num_planned = sum(task.num_refs for task in tasks) - build.num_variants
    num_listed = len(build.rejected_files)
    num_images = num_planned + num_listed
    if len(rejects) == num_images:
        return f"all {num_images:,} images were rejected; {table} says why"
    # The files rejected while listing come from the whole source. Under a limit only a sample of
    # the others was decoded, which therefore counts for all of them.
    weight = Fraction(num_planned + build.over_limit, num_planned or 1)
    num_expected = num_listed + weight * (len(rejects) - num_listed)
    num_all = num_images + build.over_limit
    # As the user wrote it: 0.29 is a little less as a binary number, and 29 of 100 too many.
    allowed = Fraction(repr(build.max_reject_fraction))
    if num_expected <= allowed * num_all:
        return None
    reasons = collections.Counter(reject.reason for reject in rejects).most_common()
    sampled = f" of all {num_all:,}, by this sample" if build.over_limit else ""
    return (
        f"{len(rejects):,} of {num_images:,} images were rejected "
        f"({float(num_expected / num_all):.2%}{sampled}, allowed {float(allowed):.2%}): "
        + ", ".join(f"{count:,} {reason}" for reason, count in reasons)
        + f". See {table}; if you accept them, run again with a larger --max_reject_fraction"
    )


def _judge_classes(
    build: Build, tasks: Sequence[plan.ShardTask], sidecars: Sequence[Sidecar]
) -> str | None:
    """Returns why the dataset must not be used if all files of a class were rejected.

    Such a class is a folder of something else beside the classes' folders, or lost as a whole.
    """
    counts = [sum(column) for column in zip(*(s.label_counts for s in sidecars), strict=True)]
    without = {name for name, count in zip(build.label_names, counts, strict=True) if not count}
    if not without:
        return None
    rejected = {reject.source_path for sidecar in sidecars for reject in sidecar.rejects}
    lost: dict[str, str] = {}
    with build.storage.open_arrow(PLAN_FILE) as file:
        for task in tasks:
            for ref in iterate_refs(plan.read_task_refs(file, task, build.fingerprint)):
                if ref.source_path not in rejected:
                    without.discard(ref.label)  # dropped as a duplicate
                elif ref.label in without:
                    lost[ref.label] = ref.source_path
    lost = {name: path for name, path in sorted(lost.items()) if name in without}
    if not lost:
        return None
    name, path = next(iter(lost.items()))
    rest = ",".join(label for label in build.label_names if label not in lost)
    return (
        f"no image is left of class {name!r}: all its files were rejected, such as {path} "
        f"({build.storage.path(manifest.REJECTS_FILE_NAME)} has them). Repair the files; or, if "
        f"that folder is no class, run again with --classes={rest} --overwrite"
    )


def _leave_out_duplicates(
    build: Build, tasks: Sequence[plan.ShardTask], sidecars: Sequence[Sidecar]
) -> pa.Table:
    """Takes duplicates out of the shards if the policies say so; returns all that was dropped."""
    planned = drops.read_table(build.storage, drops.PLANNED_FILE)
    if planned is None:
        planned = DROPPED_SCHEMA.empty_table()
    if "drop" not in (build.drops.duplicates, build.drops.leaks):
        return planned
    decided = drops.read_table(build.storage, drops.DECIDED_FILE)
    if decided is None:
        with _images(build) as images:
            examples = _read_examples(build.storage)
            decided = drops.decide(examples, twins.find_twins(examples, images), build.drops)
        drops.write_table(build.storage, drops.DECIDED_FILE, decided)
    keys: dict[str, set[str]] = {}
    for row in [*decided.to_pylist(), *_variants_of(build, decided)]:
        keys.setdefault(row["shard"], set()).add(row["key"])
    for task, sidecar in zip(tasks, sidecars, strict=True):
        if sidecar.num_dropped or task.shard_name not in keys:
            continue
        num_examples, sha256, label_counts = drops.copy_without(
            build.storage,
            task.shard_name,
            _rows_name(task),
            keys[task.shard_name],
            build.layout,
            build.label_names,
        )
        smaller = dataclasses.replace(
            sidecar,
            num_examples=num_examples,
            num_bytes=num_examples * build.layout.stride,
            sha256=sha256,
            label_counts=label_counts,
            num_dropped=sidecar.num_examples - num_examples,
        )
        with build.storage.create(shards.sidecar_name(task.shard_name)) as file:
            file.write(smaller.to_json().encode())
    return pa.concat_tables([planned, decided.select(DROPPED_SCHEMA.names)])


def _variants_of(build: Build, decided: pa.Table) -> list[dict[str, Any]]:
    """Returns shard and key of the augmented copies of what goes: they go too."""
    if not build.num_variants:
        return []
    with build.storage.open_arrow(manifest.EXAMPLES_FILE_NAME) as file:
        rows = pq.read_table(file, columns=["shard", "key", "path", "variant"])
    goes = pc.is_in(rows["path"], decided["path"].combine_chunks())
    return rows.filter(pc.and_(goes, pc.greater(rows["variant"], 0))).to_pylist()


def _require_unique_keys(storage: Storage) -> None:
    """Refuses a dataset that holds an image twice, whatever the shards' own counts say.

    Raises:
        errors.BuildError: if two examples have the same key.
    """
    with storage.open_arrow(manifest.EXAMPLES_FILE_NAME) as file:
        rows = pq.read_table(file, columns=["key"])
    repeated = len(rows) - pc.count_distinct(rows["key"]).as_py()
    if repeated:
        raise errors.BuildError(
            f"{repeated:,} of {len(rows):,} examples in {storage.root} repeat the key of another "
            "one: its shards do not belong to one plan. Build the dataset anew with --overwrite"
        )


def _count_variants(storage: Storage) -> int:
    with storage.open_arrow(manifest.EXAMPLES_FILE_NAME) as file:
        variants = pq.read_table(file, columns=["variant"])["variant"]
    return pc.sum(pc.greater(variants, 0)).as_py() or 0


def _audit(
    build: Build,
    finished: manifest.Manifest,
    rejects: Sequence[RejectedFile],
    dropped: pa.Table,
) -> manifest.Manifest:
    """Returns the manifest with its audit, and writes the dataset's card."""
    # Only here: the launcher imports this module, too, and draws no card.
    from pipelines import card

    examples = _read_examples(build.storage)
    with _images(build) as images:
        result = audit.audit_examples(examples, twins.find_twins(examples, images), finished)
        content = {"notes": list(build.notes), **result.to_dict()}
        finished = dataclasses.replace(finished, audit=content)
        page = card.render(finished, result, examples, images, rejects, dropped)
    with build.storage.create(manifest.REPORT_FILE_NAME) as file:
        file.write(page.encode())
    return finished


def _images(build: Build) -> twins.ImageReader:
    return twins.ImageReader(build.layout, build.storage.open_arrow)


def _read_examples(storage: Storage) -> pa.Table:
    with storage.open_arrow(manifest.EXAMPLES_FILE_NAME) as file:
        return audit.read_examples(file)


def _write_listing(storage: Storage, name: str, rows: Iterable[Sequence[str]]) -> None:
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    writer.writerow(["path", "reason", "detail"])
    writer.writerows(map(csv_cell, row) for row in rows)
    with storage.create(name) as file:
        file.write(text.getvalue().encode())


def _write_failure(storage: Storage, message: str) -> None:
    with storage.create(FAILURE_FILE) as file:
        file.write(json.dumps({"message": message}).encode())


def _write_examples(storage: Storage, tasks: Sequence[plan.ShardTask]) -> None:
    """Joins the shards' rows into one table, a row group a shard, never all in memory."""
    with (
        storage.create(manifest.EXAMPLES_FILE_NAME) as file,
        pq.ParquetWriter(file, EXAMPLE_SCHEMA) as writer,
    ):
        for rows in storage.map(functools.partial(_read_rows, storage), tasks):
            writer.write_table(rows)


def _read_rows(storage: Storage, task: plan.ShardTask) -> pa.Table:
    with storage.open_arrow(_rows_name(task)) as part:
        # `read_table` would look for a whole folder's dataset, which takes longer than reading.
        return pq.ParquetFile(part).read()


def _make_manifest(
    build: Build,
    tasks: Sequence[plan.ShardTask],
    sidecars: Sequence[Sidecar],
    counts: Mapping[str, Any],
    rejects: Sequence[RejectedFile],
) -> manifest.Manifest:
    by_split: dict[str, list[Sidecar]] = {}
    for task, sidecar in zip(tasks, sidecars, strict=True):
        by_split.setdefault(task.split, []).append(sidecar)
    return manifest.Manifest(
        name=build.name,
        image_shape=build.preprocessing.image_shape,
        label_names=build.label_names,
        splits={
            split: manifest.Split(
                label_counts=tuple(map(sum, zip(*(s.label_counts for s in members), strict=True))),
                shards=tuple(
                    manifest.Shard(
                        name=s.shard,
                        num_examples=s.num_examples,
                        num_bytes=s.num_bytes,
                        sha256=s.sha256,
                    )
                    for s in members
                ),
            )
            for split, members in by_split.items()
        },
        preprocessing=build.preprocessing.to_dict(),
        source=build.source.describe(),
        counts=counts,
        rejects=dict(sorted(collections.Counter(r.reason for r in rejects).items())),
        options=build.identity,
        fingerprint=build.fingerprint,
        versions={
            "python": platform.python_version(),
            "apache_beam": beam.__version__,
            "pyarrow": pa.__version__,
            **preprocess.decoder_versions(),
        },
    )
