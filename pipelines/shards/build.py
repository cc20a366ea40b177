"""What workers know of a dataset besides their task, and the sidecars of its finished shards.

A sidecar proves that its shard is finished; a build resumes where one is missing.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Callable, Sequence
from typing import IO

import pyarrow as pa
import pyarrow.parquet as pq

from pipelines.listing.refs import RejectedFile
from pipelines.planning.plan import ShardTask
from pipelines.sources.source import Source
from tfrecord_io.format import manifest
from tfrecord_io.format.statistics import PixelStatistics
from tfrecord_io.stores.folder import BUILD_DIR, Folder

#: Opens a file of the output for writing by its name.
Create = Callable[[str], contextlib.AbstractContextManager[IO[bytes]]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sidecar:
    """The facts of one written shard, stored as JSON beside it.

    Attributes:
        fingerprint: that of the build that wrote the shard.
        shard: name of the shard file; `num_bytes` and `sha256` (hexadecimal) are those of the file.
        num_refs: number of images planned into the shard; `num_examples` were written.
        label_counts: number of examples that have each label, in the order of the label names.
        rejects: the images left out.
        statistics: sums over the pixels of the records.
    """

    fingerprint: str
    shard: str
    num_refs: int
    num_examples: int
    num_bytes: int
    sha256: str
    label_counts: tuple[int, ...]
    rejects: tuple[RejectedFile, ...]
    statistics: PixelStatistics

    def write(self, create: Create) -> None:
        """Writes the sidecar as JSON beside its shard."""
        content = json.dumps(dataclasses.asdict(self), indent=1)
        with create(manifest.sidecar_name(self.shard)) as file:
            file.write(f"{content}\n".encode())

    @classmethod
    def from_json(cls, text: str | bytes) -> Sidecar:
        """Parses what `write` wrote; raises ValueError if the text is not a sidecar."""
        try:
            content = json.loads(text)
            content["label_counts"] = tuple(content["label_counts"])
            content["rejects"] = tuple(RejectedFile(**reject) for reject in content["rejects"])
            content["statistics"] = PixelStatistics.from_dict(content["statistics"])
            return cls(**content)
        except (KeyError, TypeError) as error:
            raise ValueError(f"not the sidecar of a shard: {error!r}") from error


@dataclasses.dataclass(frozen=True, kw_only=True)
class Build:
    """A dataset that workers write.

    Attributes:
        output: folder where it is written.
        replaces: folder whose dataset it replaces when it is finished; None if it stays in
            `output`.
        draft: the manifest, as far as it is known before the shards are written.
        source: where the images come from.
        max_reject_fraction: the build fails if more than this share of the images is rejected.
        rejected_files: images already rejected by the listing.
        planned_labels: the names of the labels of the planned images.
    """

    output: Folder
    replaces: Folder | None = None
    draft: manifest.Manifest
    source: Source
    max_reject_fraction: float
    rejected_files: tuple[RejectedFile, ...] = ()
    planned_labels: frozenset[str] = frozenset()

    def find_finished(self, tasks: Sequence[ShardTask]) -> dict[int, Sidecar]:
        """Returns the sidecars of the tasks whose shard is written, by task index."""
        names = set(self.output.names())
        there = [task for task in tasks if manifest.sidecar_name(task.shard_name) in names]
        pairs = zip(there, self.output.map(self.read_sidecar, there), strict=True)
        return {task.index: sidecar for task, sidecar in pairs if sidecar is not None}

    def read_sidecar(self, task: ShardTask) -> Sidecar | None:
        """Returns a task's sidecar, or None if it does not fit or a file is missing."""
        try:
            sidecar = Sidecar.from_json(self.output.read(manifest.sidecar_name(task.shard_name)))
        except (FileNotFoundError, ValueError):
            return None
        fits = (
            sidecar.fingerprint == self.draft.fingerprint
            and sidecar.num_refs == task.num_refs
            and self.output.size(task.shard_name) == sidecar.num_bytes
            and self.output.exists(rows_name(task))
        )
        return sidecar if fits else None

    def read_rows(self, task: ShardTask) -> pa.Table:
        """Returns the rows of the examples table that a finished task has made."""
        with self.output.open(rows_name(task)) as part:
            # `read_table` would set up a dataset of many files, which takes longer than reading.
            # Without threads, none holds the file when Python ends.
            return pq.ParquetFile(part).read(use_threads=False)


def rows_name(task: ShardTask) -> str:
    """Returns the name of the file with a shard's rows of the examples table."""
    return f"{BUILD_DIR}/{task.shard_name.removesuffix('.tfrecord')}.parquet"


@dataclasses.dataclass(frozen=True)
class Job:
    """A build whose plan is written, ready to run.

    Attributes:
        build: what every worker needs to know.
        todo: the tasks that are not finished yet.
        num_finished: number of images in shards that an earlier run finished.
    """

    build: Build
    todo: tuple[ShardTask, ...]
    num_finished: int
