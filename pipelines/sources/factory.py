"""Makes the source that the user chose, after downloading or drawing its images.

The paths in it are absolute, because a worker may have another working directory.
"""

from __future__ import annotations

from pathlib import Path

from tqdm import tqdm

from pipelines import errors
from pipelines.sources import fashion_mnist, staging
from pipelines.sources.archive import ArchiveSource
from pipelines.sources.directory import DirectorySource
from pipelines.sources.kaggle import download as kaggle
from pipelines.sources.options import SourceOptions
from pipelines.sources.remote import RemoteDirectorySource, RemoteZipSource
from pipelines.sources.source import Source
from pipelines.sources.synthetic import tree as synthetic
from tfrecord_io.stores import remote
from tfrecord_io.stores.folder import is_remote


def make_source(options: SourceOptions, workers: staging.Workers, seed: int) -> Source:
    """Returns the source that the user chose, after downloading or drawing its images.

    The output folder is not touched, so a failed download leaves nothing there.

    `seed` is that of synthetic images.

    Raises:
        errors.UserError: if credentials are missing, or an option does not fit the source.
        errors.BuildError: if the data could not be downloaded or drawn.
    """
    staging.require_reachable(options, workers)
    source = _source(options, seed)
    if isinstance(source, ArchiveSource):
        return staging.staged(source, options, workers)
    return source


def _source(options: SourceOptions, seed: int) -> Source:
    given, downloads = options.input or "", options.download_dir.absolute()
    match options.source:
        case "archive" if is_remote(given):
            return RemoteZipSource(given)
        case "archive":
            if (path := _local(options)).is_dir():
                raise errors.UserError("--input is a folder; use --source directory")
            return ArchiveSource(path)
        case "directory" if is_remote(given):
            return RemoteDirectorySource(given)
        case "directory":
            if not (path := _local(options)).is_dir():
                raise errors.UserError("--input is a file, not a folder; use --source archive")
            return DirectorySource(path)
        case "kaggle":
            path = kaggle.download_archive(options.kaggle_dataset, downloads)
            return ArchiveSource(path, kind="kaggle", dataset=options.kaggle_dataset)
        case "fashion_mnist":
            if given:
                return fashion_mnist.FashionMnistSource(_local(options))
            fashion_mnist.download(downloads / "fashion-mnist", options.fashion_mnist_url)
            return fashion_mnist.FashionMnistSource(downloads / "fashion-mnist")
    num_examples = options.num_examples
    folder = downloads / f"synthetic-{num_examples}-seed-{seed}"
    with tqdm(total=num_examples, unit=" images", desc="drawing", delay=1.0) as bar:
        synthetic.write_tree(folder, num_examples, seed, progress=bar.update)
    return DirectorySource(folder, kind="synthetic")


def _local(options: SourceOptions) -> Path:
    """Returns the absolute path of `--input`, which is on this machine."""
    given = options.input or ""
    if is_remote(given):
        raise errors.UserError(
            f"--source {options.source} reads a local folder, received "
            f"{remote.shown(given)}; copy the files to a disk of this machine first"
        )
    if not (path := Path(given).absolute()).exists():
        raise errors.UserError(f"--input {given} does not exist")
    return path
