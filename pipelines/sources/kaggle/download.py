"""Downloads a Kaggle dataset's archive: resumes, retries, checks and keeps it.

Its parts are read like those of any zip on a web server, several of them at the same time.

A partial archive has a marker beside it, `NAME.zip.kaggle-partial`, with the remote file's
validator (its ETag, or else its time) and size. The official client writes the same marker, so each
can resume the other's download. An archive without a marker is complete.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
from pathlib import Path

from tqdm import tqdm
from tqdm.utils import CallbackIOWrapper

from pipelines import errors
from pipelines.sources.downloads import byte_bar, read_json
from pipelines.sources.kaggle.api import Login, archive_address, find_login
from pipelines.stores import file_lock
from tfrecord_io import archives
from tfrecord_io.ahead import map_ahead
from tfrecord_io.files import sync_folder, write_json
from tfrecord_io.rejects import is_of_content
from tfrecord_io.stores import remote

DEFAULT_DATASET = "paultimothymooney/kermany2018"

_LOG = logging.getLogger(__name__)
# A killed download loses the parts that were on their way.
_PART_BYTES = 1 << 20
_NUM_PARTS_AT_ONCE = 8
# Attempts in a row that bring no new byte; in each of them, single requests are made again.
_MOST_ATTEMPTS = 3


def check_dataset_name(dataset: str) -> None:
    """Raises ValueError if a dataset's name has not the form OWNER/NAME."""
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

    with (
        errors.clear_write_errors(f"{archive} (--download_dir chooses another folder)"),
        # The lock ends with the process, so a killed download does not block the next one.
        file_lock.held(archive.with_name(f".{archive.name}.lock"), busy),
    ):
        if not _is_finished(archive):
            fetch(dataset, archive)
        if not is_verified(archive, dataset):
            verify_archive(archive, dataset)
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
                    raise errors.BuildError(
                        f"{message}\nRun the same command again to resume with the "
                        f"{tqdm.format_sizeof(_size(archive), 'B')} that arrived."
                    ) from None
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
    free = shutil.disk_usage(archive.parent).free
    if file.size - start > free:
        raise errors.BuildError(
            f"{archive.parent} has {tqdm.format_sizeof(free, 'B')} free, but {archive.name} needs "
            f"{tqdm.format_sizeof(file.size - start, 'B')} more.\n"
            "Free some space, or choose another folder with --download_dir."
        )
    if not start:
        # The old bytes go first: the marker of the new version would vouch for them.
        if _size(archive):
            with archive.open("wb") as old:
                os.fsync(old.fileno())
        # The marker is on the disk first: without it, a partial file would count as complete.
        write_json(_marker(archive), {"validator": f'"{file.mark}"', "size": file.size})
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


def _is_finished(archive: Path) -> bool:
    return archive.is_file() and not _marker(archive).exists()


def _marker(archive: Path) -> Path:
    return archive.with_name(archive.name + ".kaggle-partial")


def _size(path: Path) -> int:
    return path.stat().st_size if path.is_file() else 0


def verify_archive(archive: Path, dataset: str) -> None:
    """Compares the CRC of every member of a zip, and records in a sidecar file that all are right.

    A corrupt archive is renamed to `NAME.zip.corrupt`, so that the next run starts a new download
    and 11 GB are not deleted without the user's consent.

    Raises:
        errors.BuildError: if the archive is corrupt.
        OSError: if the disk failed.
    """
    stat = archive.stat()
    if damage := _find_damage(archive, stat.st_size):
        _record(archive).unlink(missing_ok=True)
        aside = archive.rename(archive.with_name(archive.name + ".corrupt"))
        raise errors.BuildError(
            f"{archive} has all its bytes, but is corrupt: {damage}.\n"
            f"It was moved to {aside}, which you may delete.\n"
            "Run the same command again to download a new one."
        )
    facts = {"dataset": dataset, "size": stat.st_size, "mtime_ns": stat.st_mtime_ns}
    write_json(_record(archive), facts)


def is_verified(archive: Path, dataset: str) -> bool:
    """Returns whether an archive was checked and has not changed since.

    Raises:
        errors.BuildError: if the archive belongs to another dataset of the same NAME.
    """
    record, stat = read_json(_record(archive)), archive.stat()
    if (record.get("size"), record.get("mtime_ns")) != (stat.st_size, stat.st_mtime_ns):
        return False
    if str(record.get("dataset")).lower() != dataset.lower():
        raise errors.BuildError(
            f"{archive} is the archive of {record.get('dataset')}, not of {dataset}: the two have "
            "the same NAME.\nChoose another folder with --download_dir."
        )
    return True


def _record(archive: Path) -> Path:
    return archive.with_name(archive.name + ".verified.json")


def _find_damage(archive: Path, num_bytes: int) -> str:
    """Returns what is wrong with a zip, "" if nothing is.

    Raises:
        errors.BuildError: if bytes of the file are in no member.
    """
    try:
        with (
            archive.open("rb") as raw,
            byte_bar(f"checking {archive.name}", total=num_bytes) as bar,
            archives.open_zip(CallbackIOWrapper(bar.update, raw, "read")) as file,
        ):
            bar.reset()  # what was read so far is the index
            member = file.testzip()
            return f"the checksum of {member!r} is wrong" if member else ""
    except archives.UnlistedBytesError as error:
        # Its owner may have made it so; a new download would take hours and be the same.
        raise errors.BuildError(
            f"{archive} is refused: {error}. It was kept. If the download is damaged, delete it, "
            "and run the same command again"
        ) from None
    except Exception as error:
        if not is_of_content(error):
            raise
        return f"it cannot be read ({error!r})"
