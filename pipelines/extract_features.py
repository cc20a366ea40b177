"""Stores the features that the frozen part of a network gives for each image of a dataset.

    python pipelines/extract_features.py --data OUT --trunk trunk.keras --output FEATURES

The output is a dataset too, whose images are feature maps. `train/run.py` trains the layers above
the trunk on it. The job resumes, runs on the same engines and is verified like a build.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import io
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from pipelines import errors
from pipelines.build_tfrecords import run
from pipelines.engine import launch
from pipelines.engine.job import Job, clean, full_path, start_or_resume
from pipelines.planning import plan
from pipelines.shards.features import DTYPES, Extraction
from pipelines.stores import output_state
from pipelines.stores.output import Storage
from tfrecord_io import flags
from tfrecord_io.flags import check, flag
from tfrecord_io.manifest import EXAMPLES_FILE_NAME, FEATURES, Manifest
from tfrecord_io.reading.opening import open_split
from tfrecord_io.trunk import FILE_NAME, Trunk, read_trunk, seen_path

_EPILOG = """\
All other flags are Beam's, as for build_tfrecords.py. On this machine one process writes all
shards, because Keras uses every core; --direct_num_workers=2 starts two.
"""


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
        if full_path(self.data) == full_path(self.output):
            raise ValueError(f"--output must be another folder than --data, received {self.output}")


def extract(argv: Sequence[str]) -> None:
    """Plans the shards, writes them and finishes the dataset.

    Raises:
        errors.UserError: if the usage or the input is wrong.
        errors.BuildError: if the extraction could not be finished.
    """
    parser = flags.Parser(
        prog=flags.command("features"),
        description=(__doc__ or "").partition("\n")[0],
        epilog=_EPILOG,
        # An abbreviation of one of these flags could be one of Beam's flags.
        allow_abbrev=False,
    )
    flags.add_flags(parser, "features", FeatureOptions)
    found, beam_args = parser.parse_known_args(argv)
    options = flags.from_flags(FeatureOptions, found)
    # The last of two flags counts, so the user's own number wins.
    beam_args = ["--direct_num_workers=1", *beam_args]
    names = [f"--{field.name}" for field in dataclasses.fields(FeatureOptions)]
    launch.launch(options.output, beam_args, names, lambda: prepared_features(options), run)


@contextlib.contextmanager
def prepared_features(options: FeatureOptions) -> Iterator[Job | None]:
    """Plans the shards, copies the trunk, and locks the output folder until the block ends.

    Yields:
        the job, or None if the output is already complete.

    Raises:
        errors.UserError, ManifestError: if the dataset or the trunk is unusable, or the output is
            locked or holds another dataset.
    """
    started = time.monotonic()
    trunk, content = _read_trunk(options.trunk)
    data, storage = Storage(full_path(options.data)), Storage(full_path(options.output))
    images = _read_images(data, trunk)
    digest = hashlib.sha256(content).hexdigest()
    identity = {
        "dataset": images.fingerprint,
        "trunk": digest,
        "dtype": options.dtype,
        "format_version": 2,
    }
    draft = dataclasses.replace(
        images,
        name=f"{images.name}_features",
        image_shape=trunk.feature_shape,
        dtype=options.dtype,
        source={
            "kind": FEATURES,
            "dataset": {"name": images.name, "fingerprint": images.fingerprint},
            "images": images.source,
            "trunk": {**dataclasses.asdict(trunk), "sha256": digest},
        },
        options=identity,
        fingerprint=output_state.fingerprint(identity),
        statistics=None,
    )
    extraction = Extraction(output=storage.root, draft=draft, data=data.root, images=images)
    with output_state.locked(storage):
        if output_state.is_complete(storage, identity, overwrite=options.overwrite):
            yield None
            return
        tasks = extraction.tasks()
        clean(storage)
        plan.write_plan(storage, draft, tasks)
        storage.write(FILE_NAME, content)
        if (seen := seen_path(Path(options.trunk))).exists():
            storage.write(seen_path(Path(FILE_NAME)).name, seen.read_bytes())
        yield start_or_resume(extraction, tasks, started)


def _read_trunk(path: str) -> tuple[Trunk, bytes]:
    """Returns the facts of a trunk file, and its content."""
    try:
        content = Path(path).read_bytes()
        return read_trunk(io.BytesIO(content)), content
    except OSError as error:
        raise errors.UserError(f"cannot read --trunk {path}: {error.strerror}") from None
    except ValueError as error:
        raise errors.UserError(f"--trunk {path}: {error}") from None


def _read_images(storage: Storage, trunk: Trunk) -> Manifest:
    """Returns the manifest of the dataset of images, checked against its files and the trunk."""
    data = storage.root
    images = Manifest.load(data)
    if images.dtype != "uint8" or images.image_shape != trunk.image_shape:
        raise errors.UserError(
            f"the trunk takes uint8 images of shape {trunk.image_shape}, but those of {data} are "
            f"{images.dtype} of shape {images.image_shape}; write a trunk for this dataset with "
            f"{flags.command('trunk')} --data {data}"
        )
    # Otherwise a missing file would be noticed only after all features are computed.
    open_split(data, list(images.splits))
    try:
        with storage.open_arrow(EXAMPLES_FILE_NAME) as examples:
            pq.read_schema(examples)
    except (OSError, pa.ArrowInvalid) as error:
        raise errors.UserError(
            f"{storage.path(EXAMPLES_FILE_NAME)} cannot be read: {error}; copy the dataset again"
        ) from None
    return images


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit code, see `launch.exit_code`."""
    return launch.exit_code(extract, sys.argv[1:] if argv is None else argv)


if __name__ == "__main__":
    sys.exit(main())
