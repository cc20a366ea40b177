"""Makes the source that the user chose, after downloading, drawing or uploading its images.

The paths in it are absolute, because a worker may have another working directory.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from tqdm import tqdm
from tqdm.utils import CallbackIOWrapper

from pipelines import errors
from pipelines.sources import fashion_mnist, zip_members
from pipelines.sources.archive import ArchiveSource
from pipelines.sources.directory import DirectorySource
from pipelines.sources.downloads import byte_bar
from pipelines.sources.kaggle import download as kaggle
from pipelines.sources.options import SourceOptions, Workers
from pipelines.sources.remote import RemoteDirectorySource, RemoteZipSource
from pipelines.sources.source import Source
from pipelines.sources.synthetic import tree as synthetic
from pipelines.stores.output import Storage
from tfrecord_io.stores import remote
from tfrecord_io.stores.folder import is_remote


def make_source(options: SourceOptions, workers: Workers, seed: int) -> Source:
    """Returns the source that the user chose; `seed` is that of synthetic images.

    The output folder is not touched, so a failed download leaves nothing there.

    Raises:
        errors.UserError: if credentials are missing, or an option does not fit the source.
        errors.BuildError: if the data could not be downloaded, drawn or uploaded.
    """
    require_reachable(options, workers)
    given, downloads = options.input or "", options.download_dir.absolute()
    match options.source:
        case "kaggle":
            path = kaggle.download_archive(options.kaggle_dataset, downloads)
            facts = {"kind": "kaggle", "dataset": options.kaggle_dataset}
            return staged(ArchiveSource(path, facts), options, workers)
        case "synthetic":
            folder = downloads / f"synthetic-{options.num_examples}-seed-{seed}"
            with tqdm(total=options.num_examples, unit=" images", desc="drawing", delay=1.0) as bar:
                synthetic.write_tree(folder, options.num_examples, seed, progress=bar.update)
            return DirectorySource(folder, kind="synthetic")
        case "fashion_mnist" if not given:
            fashion_mnist.download(downloads / "fashion-mnist", options.fashion_mnist_url)
            return fashion_mnist.FashionMnistSource(downloads / "fashion-mnist")
        case "archive" if is_remote(given):
            return RemoteZipSource(given)
        case "directory" if is_remote(given):
            return RemoteDirectorySource(given)
    if is_remote(given):
        raise errors.UserError(
            f"--source {options.source} reads a local folder, received "
            f"{remote.shown(given)}; copy the files to a disk of this machine first"
        )
    path = Path(given).absolute()
    if not path.exists():
        raise errors.UserError(f"--input {given} does not exist")
    if options.source == "fashion_mnist":
        return fashion_mnist.FashionMnistSource(path)
    if path.is_dir() and options.source == "archive":
        raise errors.UserError("--input is a folder; use --source directory")
    if options.source == "archive":
        return staged(ArchiveSource(path), options, workers)
    if not path.is_dir():
        raise errors.UserError("--input is a file, not a folder; use --source archive")
    return DirectorySource(path)


def require_reachable(options: SourceOptions, workers: Workers) -> None:
    """Checks that the workers will be able to read the images, before downloading or drawing them.

    Dataflow's workers cannot read this machine's disk. The workers of another cluster may share a
    disk with it; if they do not, the first worker raises an error.

    Raises:
        errors.UserError: if the workers cannot read the images; the message says what to do.
    """
    given = options.input or ""
    if remote.shown(given) != given and workers != "here":
        raise errors.UserError(
            f"--input {remote.shown(given)} was given with a signature or a password, which would "
            "be written into the job's description; give a URL without one, or copy the file first"
        )
    if workers != "dataflow" or is_remote(given):
        return
    if options.source not in ("kaggle", "archive"):
        raise errors.UserError(
            f"--source {options.source} reads from a disk of this machine, which Dataflow's "
            "workers cannot read; copy the images to gs:// and give that folder or zip as --input "
            "with --source directory or archive"
        )
    if not options.staging:
        raise errors.UserError(
            "Dataflow's workers cannot read this machine's disk; give --staging "
            "gs://BUCKET/FOLDER, to which the archive is then uploaded once"
        )


def staged(source: ArchiveSource, options: SourceOptions, workers: Workers) -> Source:
    """Uploads a local zip to `--staging` once, if the workers are remote; returns its source there.

    Raises:
        errors.UserError: if the archive is not a zip, or `--staging` cannot be used.
        errors.BuildError: if the upload fails.
    """
    path = source.path
    if workers == "here" or not options.staging:
        return source
    if not source.is_zip:
        raise errors.UserError(
            f"{path} is not a zip, and only a zip can be read in parts from --staging; "
            "pack the images as a .zip"
        )
    size, digest = path.stat().st_size, hashlib.blake2b(digest_size=8)
    with path.open("rb") as file:
        # Name, sizes, offset and CRC of each member identify the zip.
        for member in zip_members.list_members(file, str(path)):
            digest.update(repr(member[:5]).encode())
        folder = Storage(f"{options.staging.rstrip('/')}/{size}-{digest.hexdigest()}")
        if folder.size(path.name) != size:
            file.seek(0)
            with byte_bar("uploading to --staging", total=size) as bar:
                remote.write(folder.path(path.name), CallbackIOWrapper(bar.update, file, "read"))
    return RemoteZipSource(folder.path(path.name), source.facts)
