"""The facts of a build that every worker gets, and the sidecar of each written shard."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
from collections.abc import Callable, Iterable, Mapping
from typing import IO, Any

import pyarrow as pa

from pipelines import errors
from pipelines.planning import plan, splits
from pipelines.sources.listing import RejectedFile
from pipelines.sources.source import Source
from pipelines.stores.output import BUILD_DIR, Storage
from tfrecord_io import manifest, preprocess, schema, shards
from tfrecord_io.auditing import columns, twins
from tfrecord_io.label_kinds import CLASSES, LabelKind
from tfrecord_io.statistics import PixelStatistics

#: Opens a file of the output for writing by its name.
Create = Callable[[str], contextlib.AbstractContextManager[IO[bytes]]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class DropOptions:
    """What happens to pictures that are in the dataset more than once.

    Attributes:
        duplicates: policy for pictures with the same stored pixels, in any split.
        leaks: policy for pictures that are in several splits, near duplicates included.

    Raises:
        ValueError: if a value is not one of the policies.
    """

    duplicates: splits.Policy = "keep"
    leaks: splits.Policy = "keep"

    def __post_init__(self) -> None:
        for name in ("duplicates", "leaks"):
            if getattr(self, name) not in splits.POLICIES:
                raise ValueError(
                    f"--{name} must be keep, drop or fail, received {getattr(self, name)!r}"
                )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Work:
    """A dataset that workers write, as the engine sees it.

    Attributes:
        name: name of the dataset.
        output: folder or URL of the dataset.
        identity: everything that decides the bytes of the dataset, by name.
    """

    name: str
    output: str
    identity: Mapping[str, Any]

    @property
    def storage(self) -> Storage:
        """The output folder."""
        return Storage(self.output)

    @property
    def fingerprint(self) -> str:
        """Digest of the identity, see `plan.fingerprint`."""
        return plan.fingerprint(self.identity)

    @property
    def layout(self) -> schema.RecordLayout:
        """The layout of every record."""
        raise NotImplementedError

    def parts(self, task: plan.ShardTask) -> tuple[str, ...]:
        """Returns the names of the files of a finished task besides its shard and sidecar."""
        return ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Build(Work):
    """Everything that a worker must know besides its task.

    Attributes:
        source: where the images come from.
        preprocessing: how a file becomes pixels.
        label_names: class names in the order of their indices.
        max_reject_fraction: the build fails if more than this share of the images is rejected.
        num_files: number of files seen in the source.
        copies: number of files that repeat another one in a second folder tree.
        ignored: number of files that are not data, by reason.
        rejected_files: images already rejected by the listing.
        source_facts: the source's entry in the manifest.
        over_limit: number of images left out by the limit.
        num_variants: number of augmented copies planned.
        drops: what happens to pictures that occur more than once.
        notes: what the user should know about the classes and the splits.
        label_kind: what an example's label can be.
    """

    source: Source
    preprocessing: preprocess.Preprocessing
    label_names: tuple[str, ...]
    max_reject_fraction: float
    num_files: int
    copies: int
    ignored: Mapping[str, int]
    rejected_files: tuple[RejectedFile, ...]
    source_facts: Mapping[str, Any]
    over_limit: int = 0
    num_variants: int = 0
    drops: DropOptions = DropOptions()
    notes: tuple[str, ...] = ()
    label_kind: LabelKind = CLASSES

    @property
    def layout(self) -> schema.RecordLayout:
        """The layout of every record."""
        return schema.RecordLayout(
            image_shape=self.preprocessing.image_shape,
            num_classes=len(self.label_names),
            dtype=self.preprocessing.dtype,
            label_kind=self.label_kind,
        )

    def parts(self, task: plan.ShardTask) -> tuple[str, ...]:
        """Returns the name of the task's rows of the examples table."""
        return (rows_name(task),)

    def open_images(self) -> twins.ImageReader:
        """Returns a reader of the images in the written shards, for use in a `with` block."""
        return twins.ImageReader(self.layout, self.storage.open_arrow)

    def read_examples(self) -> pa.Table:
        """Returns the examples table, see `columns.read_examples`."""
        with self.storage.open_arrow(manifest.EXAMPLES_FILE_NAME) as file:
            return columns.read_examples(file)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sidecar:
    """The facts of one written shard, stored as JSON beside it.

    Attributes:
        fingerprint: fingerprint of the build that wrote the shard.
        shard: name of the shard file.
        num_refs: number of images planned into the shard.
        num_examples: number of records in the shard.
        num_bytes: size of the shard file.
        sha256: hexadecimal digest of the shard file.
        label_counts: number of examples that have each label, in the order of the label names.
        rejects: the images left out.
        num_dropped: number of records that were removed again as duplicates.
        statistics: sums over the pixels of the records. None if an older release wrote the
            shard, or if records were removed from it.
        computed_by: kind of device and versions of the libraries that computed the records, for
            feature maps alone; their last digits depend on it.
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
    statistics: PixelStatistics | None = None
    computed_by: Mapping[str, str] | None = None

    def to_shard(self) -> manifest.Shard:
        """Returns the shard's entry in the manifest."""
        return manifest.Shard(
            name=self.shard,
            num_examples=self.num_examples,
            num_bytes=self.num_bytes,
            sha256=self.sha256,
        )

    def to_json(self) -> str:
        """Returns the sidecar as JSON text."""
        content = dataclasses.asdict(self)
        if self.computed_by is None:
            del content["computed_by"]
        return json.dumps(content, indent=1) + "\n"

    def write(self, create: Create) -> None:
        """Writes the sidecar beside its shard."""
        with create(shards.sidecar_name(self.shard)) as file:
            file.write(self.to_json().encode())

    @classmethod
    def from_json(cls, text: str | bytes) -> Sidecar:
        """Parses what `to_json` returned.

        Raises:
            ValueError: if the text is not a sidecar.
        """
        try:
            content = json.loads(text)
            content["label_counts"] = tuple(content["label_counts"])
            content["rejects"] = tuple(RejectedFile(**reject) for reject in content["rejects"])
            if content.get("statistics") is not None:
                content["statistics"] = PixelStatistics.from_dict(content["statistics"])
            return cls(**content)
        except (KeyError, TypeError) as error:
            raise ValueError(f"not the sidecar of a shard: {error!r}") from error


def find_finished(build: Work, tasks: Iterable[plan.ShardTask]) -> dict[int, Sidecar]:
    """Returns the sidecars of the tasks whose shard is already written, by task index."""
    names = set(build.storage.names())
    there = [task for task in tasks if shards.sidecar_name(task.shard_name) in names]
    found = build.storage.map(functools.partial(read_sidecar, build), there)
    return {
        task.index: sidecar
        for task, sidecar in zip(there, found, strict=True)
        if sidecar is not None
    }


def rows_name(task: plan.ShardTask) -> str:
    """Returns the name of the file with a shard's rows of the examples table."""
    return f"{BUILD_DIR}/{task.shard_name.removesuffix('.tfrecord')}.parquet"


def read_sidecar(build: Work, task: plan.ShardTask) -> Sidecar | None:
    """Returns a task's sidecar, or None if it does not fit the build and its files."""
    try:
        sidecar = Sidecar.from_json(build.storage.read(shards.sidecar_name(task.shard_name)))
    except (FileNotFoundError, ValueError):
        return None
    fits = (
        sidecar.fingerprint == build.fingerprint
        and sidecar.num_refs == task.num_refs
        and build.storage.size(task.shard_name) == sidecar.num_bytes
        and all(build.storage.exists(name) for name in build.parts(task))
    )
    return sidecar if fits else None


def _require_sidecar(build: Work, task: plan.ShardTask) -> Sidecar:
    sidecar = read_sidecar(build, task)
    if sidecar is None:
        raise errors.BuildError(
            f"{build.storage.path(task.shard_name)} was written, but is missing or does not match "
            "its sidecar; run the same command to write it again"
        )
    return sidecar


def require_sidecars(build: Work, tasks: Iterable[plan.ShardTask]) -> list[Sidecar]:
    """Returns the sidecars of all tasks, in their order.

    Raises:
        errors.BuildError: if one is missing or does not match its shard.
    """
    return list(build.storage.map(functools.partial(_require_sidecar, build), tasks))
