"""What the launcher of an extraction does before the engine starts."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import io
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from pipelines import errors
from pipelines.engine.job import Job, clean, start_or_resume
from pipelines.planning import plan
from pipelines.shards.features import DTYPES, Extraction, finish_features, open_feature_writer
from pipelines.stores import output_state
from pipelines.stores.output import Storage
from tfrecord_io import flags
from tfrecord_io.flags import check, flag
from tfrecord_io.manifest import EXAMPLES_FILE_NAME, Manifest, ManifestError
from tfrecord_io.trunk import FILE_NAME, Trunk, read_trunk, seen_path


@dataclasses.dataclass(frozen=True, kw_only=True)
class FeatureOptions:
    """Everything the user chose.

    Raises:
        ValueError: if a value is missing or wrong, or the output is the dataset of images.
    """

    data: str = flag("", "folder or URL of a finished dataset of images", metavar="OUT")
    trunk: str = flag("", "file that train/trunk.py wrote", metavar="FILE")
    output: str = flag("", "folder or URL of the feature maps", metavar="DIR")
    dtype: str = flag(
        "float16", "type in which they are stored; float16 rounds to 11 bits", choices=DTYPES
    )
    overwrite: bool = flag(
        False, "delete the dataset in the output folder, finished or not, and make it anew"
    )

    def __post_init__(self) -> None:
        check(self)
        for name in ("data", "trunk", "output"):
            if not getattr(self, name):
                raise ValueError(f"--{name} is missing; see --help")
        if _absolute(self.data) == _absolute(self.output):
            raise ValueError(f"--output must be another folder than --data, received {self.output}")


@contextlib.contextmanager
def prepared_features(options: FeatureOptions) -> Iterator[Job | None]:
    """Plans the shards, copies the trunk, and locks the output folder until the block ends.

    Yields:
        the job, or None if the output is already complete.

    Raises:
        errors.UserError: if the dataset or the trunk is unusable, or the output is locked or holds
            another dataset.
    """
    started = time.monotonic()
    trunk, content = _read_trunk(options.trunk)
    images = _read_images(options.data, trunk)
    storage = Storage(_absolute(options.output))
    extraction = Extraction(
        name=f"{images.name}_features",
        output=storage.root,
        identity={
            "dataset": images.fingerprint,
            "trunk": hashlib.sha256(content).hexdigest(),
            "dtype": options.dtype,
            "format_version": 2,
        },
        open_writer=open_feature_writer,
        finish=finish_features,
        data=_absolute(options.data),
        images=images,
        trunk=trunk,
        dtype=options.dtype,
    )
    with output_state.locked(storage):
        if output_state.is_complete(storage, extraction.identity, overwrite=options.overwrite):
            yield None
            return
        tasks = extraction.tasks()
        clean(storage)
        plan.write_tasks(storage, tasks, extraction.identity)
        storage.write(FILE_NAME, content)
        if (seen := seen_path(Path(options.trunk))).exists():
            storage.write(seen_path(Path(FILE_NAME)).name, seen.read_bytes())
        yield start_or_resume(extraction, tasks, started)


def _absolute(folder: str) -> str:
    # A worker may have another working directory.
    return folder.rstrip("/") if Storage(folder).remote else str(Path(folder).resolve())


def _read_trunk(path: str) -> tuple[Trunk, bytes]:
    """Returns the facts of a trunk file, and its content."""
    try:
        content = Path(path).read_bytes()
        return read_trunk(io.BytesIO(content)), content
    except OSError as error:
        raise errors.UserError(f"cannot read --trunk {path}: {error.strerror}") from None
    except ValueError as error:
        raise errors.UserError(f"--trunk {path}: {error}") from None


def _read_images(data: str, trunk: Trunk) -> Manifest:
    """Returns the manifest of the dataset of images, checked against its files and the trunk."""
    storage = Storage(data)
    try:
        images = output_state.read_manifest(storage)
    except FileNotFoundError:
        raise errors.UserError(
            f"--data {data} has no manifest.json: expected the folder of a finished dataset"
        ) from None
    except ManifestError as error:
        raise errors.UserError(str(error)) from None
    if images.dtype != "uint8" or images.image_shape != trunk.image_shape:
        raise errors.UserError(
            f"the trunk takes uint8 images of shape {trunk.image_shape}, but those of {data} are "
            f"{images.dtype} of shape {images.image_shape}; write a trunk for this dataset with "
            f"{flags.command('trunk')} --data {data}"
        )
    # Otherwise a missing file would be noticed only after all features are computed.
    output_state.require_shards(storage, images)
    try:
        with storage.open_arrow(EXAMPLES_FILE_NAME) as examples:
            pq.read_schema(examples)
    except (OSError, pa.ArrowInvalid) as error:
        raise errors.UserError(
            f"{storage.path(EXAMPLES_FILE_NAME)} cannot be read: {error}; copy the dataset again"
        ) from None
    return images
