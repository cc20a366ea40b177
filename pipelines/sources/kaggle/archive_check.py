"""Checks the CRC of every member of a downloaded zip, and records the check in a sidecar file.

An archive with the recorded size and time is not checked again. A corrupt archive is renamed.
"""

import json
from pathlib import Path

from pipelines import errors
from pipelines.sources.downloads import byte_bar, read_json
from tfrecord_io import zip_index
from tfrecord_io.files import atomic_write
from tfrecord_io.printing import counted
from tfrecord_io.rejects import is_of_content

_READ_BYTES = 1 << 20


def verify_archive(archive: Path, dataset: str) -> None:
    """Reads every member of a zip, compares its CRC, and records that the archive is good.

    A corrupt archive is renamed to `NAME.zip.corrupt`, so that the next run starts a new download
    and 11 GB are not deleted without the user's consent.

    Raises:
        errors.BuildError: if the archive is corrupt (the message names the first place), or the
            disk failed.
    """
    try:
        stat = archive.stat()
        if corrupt := _corrupt_places(archive):
            _record_path(archive).unlink(missing_ok=True)
            aside = archive.rename(archive.with_name(archive.name + ".corrupt"))
            raise errors.BuildError(
                f"{archive} has all its bytes, but is corrupt in "
                f"{counted(len(corrupt), 'place')}, first in {corrupt[0]}.\n"
                f"It was moved to {aside}, which you may delete.\n"
                "Run the same command again to download a new one."
            )
        facts = {"dataset": dataset, "size": stat.st_size, "mtime_ns": stat.st_mtime_ns}
        with atomic_write(_record_path(archive)) as file:
            file.write(json.dumps(facts, indent=1).encode() + b"\n")
    except OSError as error:
        raise errors.BuildError(
            f"{archive} could not be checked: {error.strerror}.\nCheck the disk and the "
            "permissions. An archive in a folder of others can be used with --source archive."
        ) from None


def is_verified(archive: Path, dataset: str) -> bool:
    """Returns whether an archive was checked and has not changed since.

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


def _record_path(archive: Path) -> Path:
    return archive.with_name(archive.name + ".verified.json")


def _corrupt_places(archive: Path) -> list[str]:
    """Returns the corrupt members and what is wrong with each, or that the file is not a zip.

    Raises:
        errors.BuildError: if bytes of the file are in no member.
    """
    corrupt = []
    try:
        with archive.open("rb") as raw, zip_index.open_zip(raw) as file:
            total = sum(member.file_size for member in file.infolist())
            with byte_bar(f"checking {archive.name}", total=total) as bar:
                for member in file.infolist():
                    try:
                        with file.open(member) as stream:
                            while chunk := stream.read(_READ_BYTES):
                                bar.update(len(chunk))
                    except Exception as error:
                        if not is_of_content(error):
                            raise
                        corrupt.append(f"{member.filename!r}: {error}")
    except zip_index.UnlistedBytesError as error:
        # Its owner may have made it so; a new download would take hours and be the same.
        raise errors.BuildError(
            f"{archive} is refused: {error}. It was kept. If the download is damaged, delete it, "
            "and run the same command again"
        ) from None
    except Exception as error:
        if not is_of_content(error):
            raise
        corrupt.append(f"the file itself: its zip directory cannot be read ({error})")
    return corrupt
