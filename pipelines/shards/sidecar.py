"""The sidecar of a shard, which proves that it is finished; a build resumes where it is missing."""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Mapping, Sequence

from pipelines import errors
from pipelines.listing.refs import RejectedFile
from pipelines.planning import plan
from pipelines.shards.build import Create, Work
from tfrecord_io import manifest, shards
from tfrecord_io.statistics import PixelStatistics


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

    def write(self, create: Create) -> None:
        """Writes the sidecar as JSON beside its shard."""
        content = dataclasses.asdict(self)
        if self.computed_by is None:
            del content["computed_by"]
        with create(shards.sidecar_name(self.shard)) as file:
            file.write(f"{json.dumps(content, indent=1)}\n".encode())

    @classmethod
    def from_json(cls, text: str | bytes) -> Sidecar:
        """Parses what `write` wrote.

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


def find_finished(build: Work, tasks: Sequence[plan.ShardTask]) -> dict[int, Sidecar]:
    """Returns the sidecars of the tasks whose shard is written, by task index."""
    names = set(build.storage.names())
    there = [task for task in tasks if shards.sidecar_name(task.shard_name) in names]
    sidecars = build.storage.map(functools.partial(read_sidecar, build), there)
    pairs = zip(there, sidecars, strict=True)
    return {task.index: sidecar for task, sidecar in pairs if sidecar is not None}


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


def require_sidecars(build: Work, tasks: Sequence[plan.ShardTask]) -> list[Sidecar]:
    """Returns the sidecars of all tasks, in their order.

    Raises:
        errors.BuildError: if one is missing or does not match its shard.
    """
    finished = find_finished(build, tasks)
    for task in tasks:
        if task.index not in finished:
            raise errors.BuildError(
                f"{build.storage.path(task.shard_name)} was written, but is missing or does not "
                "match its sidecar; run the same command to write it again"
            )
    return [finished[task.index] for task in tasks]
