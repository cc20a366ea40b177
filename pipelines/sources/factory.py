"""Makes the source that the user chose, after downloading or drawing its images.

The paths in it are absolute, because a worker may have another working directory.
"""

from __future__ import annotations

from collections.abc import Callable
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

    Args:
        options: what the user chose.
        workers: where the images will be decoded.
        seed: seed of synthetic images.

    Raises:
        errors.UserError: if credentials are missing, or an option does not fit the source.
        errors.BuildError: if the data could not be downloaded or drawn.
    """
    staging.require_reachable(options, workers)
    if options.source == "synthetic":
        return _synthetic(options, seed)
    return staging.staged(_MAKERS[options.source](options), options, workers)


def _archive(options: SourceOptions) -> Source:
    if options.input and is_remote(options.input):
        return RemoteZipSource(options.input)
    path = _input(options)
    if path.is_dir():
        raise errors.UserError("--input is a folder; use --source directory")
    return ArchiveSource(path)


def _directory(options: SourceOptions) -> Source:
    if options.input and is_remote(options.input):
        return RemoteDirectorySource(options.input)
    path = _input(options)
    if path.is_file():
        raise errors.UserError("--input is a file, not a folder; use --source archive")
    return DirectorySource(path)


def _kaggle(options: SourceOptions) -> Source:
    """Downloads the archive, unless it is already complete, and returns it as a local archive."""
    path = kaggle.download_archive(options.kaggle_dataset, options.download_dir.absolute())
    return ArchiveSource(path, kind="kaggle", dataset=options.kaggle_dataset)


def _fashion_mnist(options: SourceOptions) -> Source:
    if options.input is not None:
        return fashion_mnist.FashionMnistSource(_input(options))
    directory = options.download_dir.absolute() / "fashion-mnist"
    fashion_mnist.download(directory, options.fashion_mnist_url)
    return fashion_mnist.FashionMnistSource(directory)


def _synthetic(options: SourceOptions, seed: int) -> Source:
    """Draws the synthetic scans, unless they are already complete, and returns their folder."""
    num_examples = options.num_examples
    directory = options.download_dir.absolute() / f"synthetic-{num_examples}-seed-{seed}"
    with tqdm(total=num_examples, unit=" images", desc="drawing", delay=1.0) as bar:
        synthetic.write_tree(directory, num_examples, seed, progress=bar.update)
    return DirectorySource(directory, kind="synthetic")


def _input(options: SourceOptions) -> Path:
    if options.input is None:
        raise errors.UserError(f"--source {options.source} needs --input")
    if is_remote(options.input):
        raise errors.UserError(
            f"--source {options.source} reads a local folder, received "
            f"{remote.shown(options.input)}; copy the files to a disk of this machine first"
        )
    # A worker may have another working directory.
    path = Path(options.input).absolute()
    if not path.exists():
        raise errors.UserError(f"--input {options.input} does not exist")
    return path


_MAKERS: dict[str, Callable[[SourceOptions], Source]] = {
    "kaggle": _kaggle,
    "archive": _archive,
    "directory": _directory,
    "fashion_mnist": _fashion_mnist,
}
