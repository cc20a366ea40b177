"""Brings a local archive to where workers on other machines can read it, once."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import IO

from pipelines import errors
from pipelines.sources import zip_members
from pipelines.sources.archive import ArchiveSource
from pipelines.sources.downloads import byte_bar
from pipelines.sources.remote import RemoteZipSource
from pipelines.sources.source import Source, SourceOptions
from pipelines.stores import remote


def require_reachable(options: SourceOptions) -> None:
    """Checks that the engine's workers will see the images, before they are fetched or drawn.

    Dataflow's workers never see a disk of this machine. Those of other clusters may share one
    with it; if they do not, the first worker says so.

    Raises:
        errors.UserError: if they will not; it says what to do.
    """
    given = options.input or ""
    if remote.shown(given) != given and options.workers != "here":
        raise errors.UserError(
            f"--input {remote.shown(given)} was given with a signature or a password, which would "
            "be written into the job's description; give a URL without, or copy the file first"
        )
    if options.workers != "dataflow" or remote.is_remote(given):
        return
    if options.source not in ("kaggle", "archive"):
        raise errors.UserError(
            f"--source {options.source} reads from a disk of this machine, which Dataflow's "
            "workers do not see; copy the images to gs:// and give that folder or zip as --input "
            "of --source directory or archive"
        )
    if not options.staging:
        raise errors.UserError(
            "Dataflow's workers do not see the disk of this machine: give --staging "
            "gs://BUCKET/FOLDER, to which the archive is then uploaded once"
        )


def staged(source: Source, options: SourceOptions) -> Source:
    """Uploads a local zip where the engine has remote workers and the user said where to.

    Raises:
        errors.UserError: if the archive is no zip, or the place cannot be used.
        errors.BuildError: if the upload fails.
    """
    if not isinstance(source, ArchiveSource) or not options.staging:
        return source
    # That the file is not there is said where all sources are prepared.
    if options.workers == "here" or not source.path.is_file():
        return source
    if not source.is_zip:
        raise errors.UserError(
            f"{source.path} is no zip, and only a zip can be read from --staging in parts; "
            "pack the images as a .zip"
        )
    url = _upload_once(source.path, options.staging)
    return RemoteZipSource(url, kind=source.kind, dataset=source.dataset)


def _upload_once(path: Path, staging: str) -> str:
    size = path.stat().st_size
    with path.open("rb") as file:
        url = f"{staging.rstrip('/')}/{size}-{_index_digest(file, size, path)}/{path.name}"
        if _size(url) == size:
            return url
        file.seek(0)
        with byte_bar(f"uploading {path.name}", total=size) as bar:
            remote.write(url, file, bar.update)
    if (uploaded := _size(url)) != size:
        raise errors.BuildError(
            f"{url} should have {size:,} bytes after the upload, but has {uploaded}; run the same "
            "command again"
        )
    return url


def _index_digest(file: IO[bytes], size: int, path: Path) -> str:
    """Returns a digest of what the zip's directory says of each file, its CRC among it."""
    digest = hashlib.blake2b(digest_size=8)
    for member in zip_members.list_members(file, size, str(path)):
        facts = (member.name, member.size, member.offset, member.stored_size, member.version)
        digest.update(repr(facts).encode())
    return digest.hexdigest()


def _size(url: str) -> int | None:
    try:
        return remote.describe(url).size
    except FileNotFoundError:
        return None
