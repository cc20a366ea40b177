"""Uploads a local archive once to a place that workers on other machines can read."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Literal

from tqdm.utils import CallbackIOWrapper

from pipelines import errors
from pipelines.sources import zip_members
from pipelines.sources.archive import ArchiveSource
from pipelines.sources.downloads import byte_bar
from pipelines.sources.options import SourceOptions
from pipelines.sources.remote import RemoteZipSource
from pipelines.sources.source import Source
from pipelines.stores.output import Storage
from tfrecord_io.stores import remote
from tfrecord_io.stores.folder import is_remote

#: Where the images are decoded: on this machine; on machines that may share its disk; on machines
#: that do not.
Workers = Literal["here", "cluster", "dataflow"]


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
    """Uploads a local zip to `--staging` if the engine has remote workers, and returns its source.

    Raises:
        errors.UserError: if the archive is not a zip, or `--staging` cannot be used.
        errors.BuildError: if the upload fails.
    """
    if workers == "here" or not options.staging:
        return source
    if not source.is_zip:
        raise errors.UserError(
            f"{source.path} is not a zip, and only a zip can be read in parts from --staging; "
            "pack the images as a .zip"
        )
    url = _upload_once(source.path, options.staging)
    return RemoteZipSource(url, kind=source.kind, dataset=source.dataset)


def _upload_once(path: Path, staging: str) -> str:
    size, digest = path.stat().st_size, hashlib.blake2b(digest_size=8)
    with path.open("rb") as file:
        # Name, sizes, offset and CRC of each member identify the zip.
        for member in zip_members.list_members(file, str(path)):
            digest.update(repr(member[:5]).encode())
        folder = Storage(f"{staging.rstrip('/')}/{size}-{digest.hexdigest()}")
        url = folder.path(path.name)
        if folder.size(path.name) == size:
            return url
        file.seek(0)
        with byte_bar("uploading to --staging", total=size) as bar:
            remote.write(url, CallbackIOWrapper(bar.update, file, "read"))
    return url
