"""Checks the CRC of every member of a downloaded zip, and records the check in a sidecar file.

An archive with the recorded size and time is not checked again. A corrupt archive is renamed.
"""

import contextlib
import errno
import json
import logging
import zipfile
import zlib
from pathlib import Path
from typing import NoReturn

from pipelines import errors
from pipelines.sources.downloads import byte_bar, byte_text, read_json
from tfrecord_io import zip_index
from tfrecord_io.files import atomic_write

_LOG = logging.getLogger(__name__)
_READ_BYTES = 1 << 20
_NAMED_MEMBERS = 5  # Corrupt members that an error names; it counts the others.


def verify_archive(archive: Path, dataset: str) -> None:
    """Reads every member of a zip, compares its CRC, and records that the archive is good.

    Memory holds a chunk of one member, and the zip's directory (about 0.7 kB per member).

    A corrupt archive is renamed to `NAME.zip.corrupt` and replaces an older file of that name. So
    the next run starts a new download, 11 GB are not deleted without the user's consent, and at
    most one such file is kept.

    Args:
        archive: the zip file.
        dataset: OWNER/NAME, for the record.

    Raises:
        errors.BuildError: if the archive is corrupt (the message names the members), or the disk
            failed.
    """
    try:
        before = archive.stat()
        num_members, corrupt = _check_members(archive)
    except OSError as error:
        raise errors.BuildError(
            f"{archive} could not be read: {error.strerror}.\nCheck the disk and permissions."
        ) from None
    if corrupt:
        _raise_corrupt(archive, corrupt, num_members)
    _record(archive, {"dataset": dataset, "size": before.st_size, "mtime_ns": before.st_mtime_ns})


def is_verified(archive: Path, dataset: str) -> bool:
    """Returns whether an archive was checked and has not changed since.

    Args:
        archive: the zip file.
        dataset: OWNER/NAME of the wanted dataset.

    Raises:
        errors.BuildError: if the archive belongs to another dataset of the same NAME.
    """
    record, stat = read_json(_record_path(archive)), archive.stat()
    if (record.get("size"), record.get("mtime_ns")) != (stat.st_size, stat.st_mtime_ns):
        return False
    if str(record.get("dataset")).lower() != dataset.lower():
        raise errors.BuildError(
            f"{archive} is the archive of {record.get('dataset')}, not of {dataset}: the two have "
            "the same NAME.\nChoose another folder with --download_dir."
        )
    return True


def _record(archive: Path, record: dict[str, str | int]) -> None:
    """Writes the record of a check; only warns if that fails, because the archive is good."""
    path = _record_path(archive)
    try:
        with atomic_write(path) as file:
            file.write(json.dumps(record, indent=1).encode() + b"\n")
    except OSError as error:  # such as a read-only folder
        _LOG.warning(
            "%s could not be written (%s), so the next run will check %s again.",
            path,
            error.strerror,
            archive.name,
        )


def _record_path(archive: Path) -> Path:
    return archive.with_name(archive.name + ".verified.json")


def _check_members(archive: Path) -> tuple[int, list[str]]:
    """Returns the number of members, and a line for each corrupt one (one if it is not a zip)."""
    try:
        with archive.open("rb") as raw, zip_index.open_zip(raw) as file:
            return len(file.infolist()), _corrupt_members(file, f"checking {archive.name}")
    except (*_NOT_A_ZIP, OSError) as error:
        if _is_disk_failure(error):
            raise
        return 0, [f"the file itself: its zip directory cannot be read ({error})"]


def _is_disk_failure(error: Exception) -> bool:
    """Returns whether the disk is at fault, and not the archive.

    An OSError of a decompressor has no errno. EINVAL means a seek to a negative offset, which comes
    from a damaged directory.
    """
    return isinstance(error, OSError) and error.errno not in (None, errno.EINVAL)


def _corrupt_members(file: zipfile.ZipFile, description: str) -> list[str]:
    corrupt = []
    members = file.infolist()
    with byte_bar(description, total=sum(member.file_size for member in members)) as bar:
        for member in members:
            try:
                with file.open(member) as stream:
                    while chunk := stream.read(_READ_BYTES):
                        bar.update(len(chunk))
            except _BAD_MEMBER as error:
                if _is_disk_failure(error):
                    raise
                corrupt.append(f"{member.filename!r}: {error}")
    return corrupt


# What zipfile and the decompressors raise for damaged bytes; bz2 raises an OSError without errno.
_NOT_A_ZIP = (zipfile.BadZipFile, ValueError, OverflowError, NotImplementedError)
_BAD_MEMBER = (*_NOT_A_ZIP, zlib.error, EOFError, RuntimeError, OSError)


def _raise_corrupt(archive: Path, corrupt: list[str], num_members: int) -> NoReturn:
    aside = archive.with_name(archive.name + ".corrupt")
    try:
        archive.replace(aside)
        whereabouts = (
            f"It was moved to {aside}; delete that to free {byte_text(aside.stat().st_size)}.\n"
            "Run the same command again to download a new one."
        )
    except OSError as error:
        whereabouts = (
            f"It could not be moved aside ({error.strerror}): delete it, then run the same command "
            "again to download a new one."
        )
    with contextlib.suppress(OSError):
        _record_path(archive).unlink(missing_ok=True)
    lines = [f"  {line}" for line in corrupt[:_NAMED_MEMBERS]]
    if len(corrupt) > _NAMED_MEMBERS:
        lines.append(f"  and {len(corrupt) - _NAMED_MEMBERS} more")
    count = f"{len(corrupt)} of its {num_members} members are" if num_members else "it is"
    raise errors.BuildError(
        "\n".join([f"{archive} has all its bytes, but {count} corrupt:", *lines, whereabouts])
    ) from None
