"""What every worker gets to know of a build, besides its task."""

from __future__ import annotations

import contextlib
import dataclasses
import traceback
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import pyarrow as pa
import pyarrow.parquet as pq

from pipelines import errors
from pipelines.listing.refs import RejectedFile
from pipelines.planning import plan
from pipelines.planning.options import SplitOptions
from pipelines.sources.source import Source
from pipelines.stores import output_state
from pipelines.stores.output import BUILD_DIR, Storage
from tfrecord_io import manifest, schema
from tfrecord_io.auditing import columns, twins
from tfrecord_io.decoding.options import Preprocessing
from tfrecord_io.kinds.classes import CLASSES
from tfrecord_io.kinds.label_kind import LabelKind

#: Opens a file of the output for writing by its name.
Create = Callable[[str], contextlib.AbstractContextManager[IO[bytes]]]

#: Writes the files of a task, its sidecar last.
WriteTask = Callable[[plan.ShardTask, Create], object]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Work:
    """A dataset that workers write, as the engine sees it.

    Attributes:
        name: name of the dataset.
        output: folder or URL of the dataset.
        identity: everything that decides the bytes of the dataset, by name.
        open_writer: given the work, opens what all its tasks need and yields a `WriteTask`.
        finish: given the work, finishes the dataset once all shards are written. Both functions
            are pickled by their names.
    """

    name: str
    output: str
    identity: Mapping[str, Any]
    open_writer: Callable[[Any], contextlib.AbstractContextManager[WriteTask]]
    finish: Callable[[Any], None]

    @property
    def storage(self) -> Storage:
        """The output folder."""
        return Storage(self.output)

    @property
    def anonymous(self) -> bool:
        """Whether no name of the input may be in an output or a log."""
        return "anonymize" in self.identity

    @property
    def fingerprint(self) -> str:
        """Digest of the identity, see `output_state.fingerprint`."""
        return output_state.fingerprint(self.identity)

    @property
    def layout(self) -> schema.RecordLayout:
        """The layout of every record."""
        raise NotImplementedError

    def parts(self, task: plan.ShardTask) -> tuple[str, ...]:
        """Returns the names of the files of a finished task besides its shard and sidecar."""
        return ()

    @contextlib.contextmanager
    def clear_errors(self) -> Iterator[None]:
        """Turns errors of the block into `errors.BuildError`s for the user.

        Those are errors of the output's file system and, if the dataset is anonymous, all errors
        whose messages may name files of the input: they reach the log of a worker.
        """
        try:
            with errors.clear_write_errors(self.output):
                yield
        except errors.ToldError:
            raise
        except Exception as error:
            if not self.anonymous:
                raise
            place = traceback.extract_tb(error.__traceback__)[-1]
            raise errors.BuildError(
                f"the build failed with {type(error).__name__} in {Path(place.filename).name}, "
                f"line {place.lineno}; the message may name files of the input, so it is not "
                "shown. Check that the input is still there, and run the same command again"
            ) from None


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
        policies: what happens to pictures that occur more than once.
        notes: what the user should know about the classes and the splits.
        label_kind: what an example's label can be.
    """

    source: Source
    preprocessing: Preprocessing
    label_names: tuple[str, ...]
    max_reject_fraction: float
    num_files: int
    copies: int
    ignored: Mapping[str, int]
    rejected_files: tuple[RejectedFile, ...]
    source_facts: Mapping[str, Any]
    policies: SplitOptions = dataclasses.field(default_factory=SplitOptions)
    over_limit: int = 0
    num_variants: int = 0
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

    def read_rows(self, task: plan.ShardTask) -> pa.Table:
        """Returns the rows of the examples table that a finished task has made."""
        with self.storage.open_arrow(rows_name(task)) as part:
            # `read_table` would set up a dataset of many files, which takes longer than reading.
            return pq.ParquetFile(part).read()

    @contextlib.contextmanager
    def open_pictures(self) -> Iterator[tuple[pa.Table, twins.Twins, twins.ImageReader]]:
        """Opens the written shards.

        Yields:
            the examples table, which of its pictures are the same, and a reader of single ones.
        """
        with self.storage.open_arrow(manifest.EXAMPLES_FILE_NAME) as file:
            examples = columns.read_examples(file)
        images = twins.ImageReader(self.layout, self.storage.open_arrow)
        yield examples, twins.find_twins(examples, images, self.label_kind), images


def rows_name(task: plan.ShardTask) -> str:
    """Returns the name of the file with a shard's rows of the examples table."""
    return f"{BUILD_DIR}/{task.shard_name.removesuffix('.tfrecord')}.parquet"
