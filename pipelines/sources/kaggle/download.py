"""Downloads a Kaggle dataset's archive: resumes, retries, checks and keeps it.

Its parts are read like those of any zip on a web server, several of them at the same time.

A partial archive has a marker beside it, `NAME.zip.kaggle-partial`, with the remote file's
validator (its ETag, or else its time) and size. The official client writes the same marker, so each
can resume the other's download. An archive without a marker is complete.
"""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
from pathlib import Path

from tqdm import tqdm

from pipelines import errors
from pipelines.sources.downloads import byte_bar, raise_disk_error, read_json
from pipelines.sources.kaggle.api import archive_address
from pipelines.sources.kaggle.archive_check import is_verified, verify_archive
from pipelines.sources.kaggle.login import Login, find_login
from pipelines.stores import file_lock
from tfrecord_io.ahead import map_ahead
from tfrecord_io.files import atomic_write, sync_folder
from tfrecord_io.stores import remote

DEFAULT_DATASET = "paultimothymooney/kermany2018"

_LOG = logging.getLogger(__name__)
# A killed download loses the parts that were on their way.
_PART_BYTES = 1 << 20
_NUM_PARTS_AT_ONCE = 8
# Attempts in a row that bring no new byte; in each of them, single requests are made again.
_MOST_ATTEMPTS = 3


def check_dataset_name(dataset: str) -> None:
    """Checks that a dataset's name has the form OWNER/NAME.

    Raises:
        ValueError: if it does not.
    """
    slug = r"[A-Za-z0-9][A-Za-z0-9_-]*"
    if not re.fullmatch(f"{slug}/{slug}", dataset):
        raise ValueError(
            f"A Kaggle dataset is named OWNER/NAME, such as {DEFAULT_DATASET}; got {dataset!r}.\n"
            "Take both from the dataset's address, https://www.kaggle.com/datasets/OWNER/NAME."
        )


def download_archive(dataset: str, download_dir: Path) -> Path:
    """Downloads what is missing of a dataset's zip archive, checks it and returns its path.

    The archive is `download_dir/NAME.zip`. One that was checked before is returned at once, without
    network or credentials; a complete one that the user put there is checked first. If another
    process is downloading it, an error names that process at once: waiting could take hours.

    Raises:
        errors.UserError: if no credentials were found, or Kaggle refused them.
        errors.BuildError: if the archive could not be downloaded, is corrupt, or is in use by
            another process.
    """
    archive = Path(download_dir) / f"{dataset.split('/')[1]}.zip"
    if not _is_finished(archive):
        find_login()  # Before any folder is made, so that an error leaves nothing on the disk.
    elif is_verified(archive, dataset):
        _LOG.info("Using %s, downloaded and checked before.", archive)
        return archive

    def busy(process: str) -> errors.BuildError:
        return errors.BuildError(
            f"{archive} is being downloaded or checked by another process (process id {process}).\n"
            "Wait until it has finished, then run the same command again to use that archive."
        )

    try:
        # The lock ends with the process, so a killed download does not block the next one.
        with file_lock.held(archive.with_name(f".{archive.name}.lock"), busy):
            if not _is_finished(archive):
                fetch(dataset, archive)
            if not is_verified(archive, dataset):
                verify_archive(archive, dataset)
    except OSError as error:
        raise_disk_error(error, archive, _kept_text(archive))
    return archive


def fetch(dataset: str, archive: Path) -> None:
    """Downloads or resumes until the archive is complete; see `download_archive`.

    Nobody else may write the file meanwhile. If it raises, the bytes that arrived are kept.
    """
    login, attempts = find_login(), 0
    with byte_bar(f"downloading {archive.name}") as bar:
        while True:
            before = _size(archive)
            try:
                _attempt(dataset, archive, login, bar)
                break
            except (errors.StoreError, FileNotFoundError) as error:
                # An address that has expired is refused, too.
                attempts = 1 if _size(archive) > before else attempts + 1
                missing = " does not exist" if isinstance(error, FileNotFoundError) else ""
                message = f"The download was interrupted: {error}{missing}."
                if attempts == _MOST_ATTEMPTS:
                    lines = filter(None, [message, _kept_text(archive)])
                    raise errors.BuildError("\n".join(lines)) from None
                _LOG.warning("%s Asking Kaggle for a new address.", message)
    # The marker goes when all bytes are on the disk: a file without one counts as complete.
    with archive.open("rb") as file:
        os.fsync(file.fileno())
    _marker(archive).unlink()
    sync_folder(archive.parent)


def _attempt(dataset: str, archive: Path, login: Login, bar: tqdm) -> None:
    """Downloads what is missing of an archive; the marker stays.

    Bytes on the disk are kept if they belong to the same version; otherwise the download starts
    again.

    Raises:
        errors.BuildError: if Kaggle refuses, or the disk has too little space.
        errors.StoreError, FileNotFoundError: if the storage refuses, stops sending or has another
            version now.
    """
    url = archive_address(dataset, login)
    file = remote.describe(url)
    known = read_json(_marker(archive))
    is_same = str(known.get("validator")).replace('"', "") == file.mark
    start = _size(archive) if is_same and known.get("size") == file.size else 0
    _check_free_space(file.size - start, archive)
    if not start:
        # The old bytes go first: the marker of the new version would vouch for them.
        if _size(archive):
            with archive.open("wb") as old:
                os.fsync(old.fileno())
        # The marker is on the disk first: without it, a partial file would count as complete.
        with atomic_write(_marker(archive)) as marker:
            facts = {"validator": f'"{file.mark}"', "size": file.size}
            marker.write(json.dumps(facts).encode())
        sync_folder(archive.parent)
    bar.total = file.size
    bar.update(start - bar.n)

    def read(place: int) -> bytes:
        return remote.read(url, place, min(_PART_BYTES, file.size - place), file.mark)

    places = range(start, file.size, _PART_BYTES)
    parts = map_ahead(read, places, _NUM_PARTS_AT_ONCE, num_threads=_NUM_PARTS_AT_ONCE)
    with archive.open("ab") as target:
        for part in parts:
            target.write(part)
            bar.update(len(part))


def _check_free_space(num_bytes: int, archive: Path) -> None:
    """Raises a `BuildError` if the disk has too little space for so many more bytes."""
    free = shutil.disk_usage(archive.parent).free
    if num_bytes > free:
        raise errors.BuildError(
            f"{archive.parent} has {tqdm.format_sizeof(free, 'B')} free, but {archive.name} needs "
            f"{tqdm.format_sizeof(num_bytes, 'B')} more.\n"
            "Free some space, or choose another folder with --download_dir."
        )


def _is_finished(archive: Path) -> bool:
    return archive.is_file() and not _marker(archive).exists()


def _marker(archive: Path) -> Path:
    return archive.with_name(archive.name + ".kaggle-partial")


def _size(path: Path) -> int:
    return path.stat().st_size if path.is_file() else 0


def _kept_text(archive: Path) -> str:
    """Returns a sentence that says how much of a download is kept, or "" if nothing is."""
    if _is_finished(archive):
        return f"It is whole; to use it from there: --source archive --input {archive}"
    if size := _size(archive):
        return f"{tqdm.format_sizeof(size, 'B')} are kept: run the same command again to resume."
    return ""
