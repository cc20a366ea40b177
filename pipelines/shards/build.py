"""What every worker knows of a build, and what lies beside each shard that it wrote."""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Iterable, Mapping
from typing import Any

import pyarrow as pa

from pipelines import errors
from pipelines.planning import plan, splits
from pipelines.sources.listing import RejectedFile
from pipelines.sources.source import Source
from pipelines.stores.output import BUILD_DIR, Storage
from tfrecord_io import manifest, preprocess, schema, shards
from tfrecord_io.auditing import audit, twins
from tfrecord_io.statistics import PixelStatistics


@dataclasses.dataclass(frozen=True, kw_only=True)
class DropOptions:
    """What happens to pictures that are in the dataset more than once.

    Attributes:
        duplicates: pictures with the same stored pixels, wherever they are.
        leaks: pictures of one split that are in another too, also as a near duplicate.

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
        ignored: number of files that are not data, by reason.
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
    drops: DropOptions = DropOptions()
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

    def open_images(self) -> twins.ImageReader:
        """Returns a reader of the images in the written shards, for use in a `with` block."""
        return twins.ImageReader(self.layout, self.storage.open_arrow)

    def read_examples(self) -> pa.Table:
        """Returns the examples table, see `audit.read_examples`."""
        with self.storage.open_arrow(manifest.EXAMPLES_FILE_NAME) as file:
            return audit.read_examples(file)


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
        statistics: sums over the pixels of its records. None if an older release wrote the
            shard, or if records were taken out of it.
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
            if content.get("statistics") is not None:
                content["statistics"] = PixelStatistics.from_dict(content["statistics"])
            return cls(**content)
        except (KeyError, TypeError) as error:
            raise ValueError(f"no sidecar of a shard: {error!r}") from error


def find_finished(build: Build, tasks: Iterable[plan.ShardTask]) -> dict[int, Sidecar]:
    """Returns the sidecars of the tasks whose shard is already there, by task index."""
    names = set(build.storage.names())
    there = [task for task in tasks if shards.sidecar_name(task.shard_name) in names]
    found = build.storage.map(functools.partial(read_sidecar, build), there)
    return {
        task.index: sidecar
        for task, sidecar in zip(there, found, strict=True)
        if sidecar is not None
    }


def rows_name(task: plan.ShardTask) -> str:
    """Returns the name of a shard's part of the examples table."""
    return f"{BUILD_DIR}/{task.shard_name.removesuffix('.tfrecord')}.parquet"


def read_sidecar(build: Build, task: plan.ShardTask) -> Sidecar | None:
    """Returns a task's sidecar if it belongs to this build and its files are there."""
    try:
        sidecar = Sidecar.from_json(build.storage.read(shards.sidecar_name(task.shard_name)))
    except (FileNotFoundError, ValueError):
        return None
    fits = (
        sidecar.fingerprint == build.fingerprint
        and sidecar.num_refs == task.num_refs
        and build.storage.size(task.shard_name) == sidecar.num_bytes
        and build.storage.exists(rows_name(task))
    )
    return sidecar if fits else None


def _require_sidecar(build: Build, task: plan.ShardTask) -> Sidecar:
    sidecar = read_sidecar(build, task)
    if sidecar is None:
        raise errors.BuildError(
            f"{build.storage.path(task.shard_name)} was written but is not there, or not as its "
            "sidecar says; run the same command again to write it anew"
        )
    return sidecar


def require_sidecars(build: Build, tasks: Iterable[plan.ShardTask]) -> list[Sidecar]:
    """Returns the sidecars of all tasks, in their order.

    Raises:
        errors.BuildError: if one is missing, or its shard is not as it says.
    """
    return list(build.storage.map(functools.partial(_require_sidecar, build), tasks))
