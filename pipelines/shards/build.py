"""What workers know of a dataset besides their task, and the sidecars of its finished shards.

A sidecar proves that its shard is finished; a build resumes where one is missing.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from typing import IO, Any, NamedTuple, Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from pipelines import errors
from pipelines.listing.refs import RejectedFile
from pipelines.planning.plan import ShardTask
from pipelines.planning.splits import SplitOptions
from pipelines.sources.source import Source
from tfrecord_io.auditing import twins
from tfrecord_io.auditing.examined import Check
from tfrecord_io.decoding.options import Preprocessing
from tfrecord_io.decoding.preprocess import DecodedImage
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
        num_dropped: number of records that were removed again as duplicates.
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
    num_dropped: int = 0
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


class ReusableImage(NamedTuple):
    """An image as if it had been decoded, and the side facts of its pixels, by their names."""

    image: DecodedImage
    side_facts: Mapping[str, Any]


class ReusableImages(Protocol):
    """The images of a store, open in a worker."""

    @property
    def num_parallel_reads(self) -> int:
        """Number of threads that should call `find`, more than one for a store on a network."""
        ...

    def find(self, data: bytes, frame: int | None) -> ReusableImage | None:
        """Returns the image of a file's bytes, or None if it must be decoded."""
        ...

    def noted(self, rows: pa.Table, num_copied: int) -> pa.Table:
        """Returns the rows of a shard, with what was copied in the metadata of their schema."""
        ...


class ReusableDataset(Protocol):
    """A store of images that were decoded before, as it is sent to the workers."""

    def fitting(self, draft: manifest.Manifest, output: Folder) -> ReusableDataset | None:
        """Writes what workers need into the output of a build; None if no image can be used."""
        ...

    def open(self, output: Folder, pixels: Preprocessing) -> ReusableImages:
        """Opens the store in a worker that writes to `output`."""
        ...


@dataclasses.dataclass(frozen=True, kw_only=True)
class Build:
    """A dataset that workers write.

    Attributes:
        output: folder where it is written.
        replaces: folder whose dataset it replaces when it is finished; None if it stays in
            `output`.
        draft: the manifest, as far as it is known before the shards are written.
        source: where the images come from.
        policies: what happens to pictures that occur more than once.
        max_reject_fraction: the build fails if more than this share of the images is rejected.
        rejected_files: images already rejected by the listing.
        reusable: images that were decoded before, which are copied.
        checks: what the audit checks besides its own.
    """

    output: Folder
    replaces: Folder | None = None
    draft: manifest.Manifest
    source: Source
    policies: SplitOptions = dataclasses.field(default_factory=SplitOptions)
    max_reject_fraction: float
    rejected_files: tuple[RejectedFile, ...] = ()
    reusable: ReusableDataset | None = None
    checks: Sequence[Check] = ()

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

    def require_sidecars(self, tasks: Sequence[ShardTask]) -> list[Sidecar]:
        """Returns the sidecars of all tasks; raises a `BuildError` if one is missing or wrong."""
        finished = self.find_finished(tasks)
        for task in tasks:
            if task.index not in finished:
                raise errors.BuildError(
                    f"{self.output.path(task.shard_name)} was written, but is missing or does not "
                    "match its sidecar; run the same command to write it again"
                )
        return [finished[task.index] for task in tasks]

    def open_images(self) -> twins.ImageReader:
        """Returns a reader of the pictures in the shards."""
        return twins.ImageReader(self.draft.layout, self.output)

    def read_rows(self, task: ShardTask) -> pa.Table:
        """Returns the rows of the examples table that a finished task has made."""
        with self.output.open(rows_name(task)) as part:
            # `read_table` would set up a dataset of many files, which takes longer than reading.
            # Without threads, none holds the file when Python ends.
            return pq.ParquetFile(part).read(use_threads=False)

    def read_schema(self, task: ShardTask) -> pa.Schema:
        """Returns the schema of these rows, with its metadata."""
        with self.output.open(rows_name(task)) as part:
            return pq.read_schema(part)


def rows_name(task: ShardTask) -> str:
    """Returns the name of the file with a shard's rows of the examples table."""
    return f"{BUILD_DIR}/{task.shard_name.removesuffix('.tfrecord')}.parquet"
