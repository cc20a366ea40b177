"""Checks the CRC of every member of a downloaded zip, and records the check in a sidecar file.

An archive with the recorded size and time is not checked again. A corrupt archive is renamed.
"""

import contextlib
import errno
import hashlib
import json
import logging
import os
import threading
import zipfile
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NoReturn

from pipelines.sources import zip_members
from pipelines.sources.downloads import DownloadError, byte_bar, byte_text, file_size, read_json

_LOG = logging.getLogger(__name__)
_READ_BYTES = 1 << 20
_NAMED_MEMBERS = 5  # Corrupt members that an error names; it counts the others.


@dataclass(frozen=True, kw_only=True)
class Verification:
    """The record of a successful check.

    Attributes:
        dataset: OWNER/NAME of the archive's dataset.
        size: size of the archive in bytes.
        mtime_ns: modification time of the archive in nanoseconds since 1970. Size and time
            identify the archive without reading it.
        sha256: SHA-256 of the whole archive, 64 hexadecimal digits.
        num_members: number of members in the zip, folders included.
        member_bytes: size of all members unpacked, in bytes.
    """

    dataset: str
    size: int
    mtime_ns: int
    sha256: str
    num_members: int
    member_bytes: int


def verify_archive(archive: Path, *, dataset: str, progress: bool = True) -> Verification:
    """Reads every member of a zip and compares its CRC; hashes the archive at the same time.

    Memory holds a chunk of one member, and the zip's directory (about 0.7 kB per member).

    A corrupt archive is renamed to `NAME.zip.corrupt` and replaces an older file of that name. So
    the next run starts a new download, 11 GB are not deleted without the user's consent, and at
    most one such file is kept.

    Args:
        archive: the zip file.
        dataset: OWNER/NAME, for the record.
        progress: whether to show a progress bar on stderr.

    Raises:
        DownloadError: if the archive is corrupt (the message names the members), or the disk
            failed.
    """
    give_up = threading.Event()
    try:
        before = archive.stat()
        with (
            _check_bar(archive, before.st_size, progress) as advance,
            ThreadPoolExecutor(max_workers=1) as pool,
        ):
            # In parallel with the CRCs: hashlib and zlib both release the GIL.
            digest = pool.submit(_sha256, archive, advance, give_up)
            try:
                members, corrupt = _check_members(archive, advance)
            except BaseException:
                give_up.set()
                raise
            if corrupt:
                give_up.set()
            sha256 = digest.result()
    except OSError as error:
        raise DownloadError(
            f"{archive} could not be read: {error.strerror}.\nCheck the disk and permissions."
        ) from None
    if corrupt:
        _raise_corrupt(archive, corrupt, len(members))
    return Verification(
        dataset=dataset,
        size=before.st_size,
        mtime_ns=before.st_mtime_ns,
        sha256=sha256,
        num_members=len(members),
        member_bytes=sum(member.file_size for member in members),
    )


def read_verification(archive: Path) -> Verification | None:
    """Returns the record of an archive's check, or None if it was never checked or has changed.

    Args:
        archive: the zip file; the record is in `NAME.zip.verified.json` beside it.
    """
    try:
        verification = Verification(**read_json(verification_path(archive)))
        stat = archive.stat()
    except (TypeError, OSError):
        return None
    is_same = (verification.size, verification.mtime_ns) == (stat.st_size, stat.st_mtime_ns)
    return verification if is_same else None


def verification_path(archive: Path) -> Path:
    """Returns the path of the record of an archive's check."""
    return archive.with_name(archive.name + ".verified.json")


def is_verified(archive: Path, dataset: str) -> bool:
    """Returns whether an archive was checked and has not changed since.

    Args:
        archive: the zip file.
        dataset: OWNER/NAME of the wanted dataset.

    Raises:
        DownloadError: if the archive belongs to another dataset of the same NAME.
    """
    verification = read_verification(archive)
    if verification is None:
        return False
    if verification.dataset.lower() != dataset.lower():
        raise DownloadError(
            f"{archive} is the archive of {verification.dataset}, not of {dataset}: the two have "
            "the same NAME.\nChoose another folder with --download_dir."
        )
    return True


def remember(archive: Path, verification: Verification) -> None:
    """Writes the record of a check; only warns if that fails, because the archive is good.

    Args:
        archive: the zip file.
        verification: the record.
    """
    path = verification_path(archive)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.write_text(json.dumps(asdict(verification), indent=1) + "\n", encoding="utf-8")
        temporary.replace(path)
    except OSError as error:  # such as a read-only folder
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        _LOG.warning(
            "%s could not be written (%s), so the next run will check %s again.",
            path,
            error.strerror,
            archive.name,
        )


_Advance = Callable[[float], None]


@contextlib.contextmanager
def _check_bar(archive: Path, size: int, progress: bool) -> Iterator[_Advance]:
    """Yields a function that advances the bar by a share of the archive; any thread may call it.

    Two threads read the whole archive, for the CRCs and for the hash, so each counts for half.
    """
    if not progress:
        yield lambda share: None
        return
    lock = threading.Lock()
    with byte_bar(f"checking {archive.name}", total=size) as bar:

        def advance(share: float) -> None:
            with lock:
                bar.update(min(share * size / 2, size - bar.n))

        yield advance


def _sha256(path: Path, advance: _Advance, give_up: threading.Event) -> str:
    digest = hashlib.sha256()
    size = path.stat().st_size
    with path.open("rb") as file:
        while not give_up.is_set() and (chunk := file.read(_READ_BYTES)):
            digest.update(chunk)
            advance(len(chunk) / size)
    return digest.hexdigest()


def _check_members(archive: Path, advance: _Advance) -> tuple[list[zipfile.ZipInfo], list[str]]:
    """Returns all members, and a line for each corrupt one (a single line if it is not a zip)."""
    try:
        with archive.open("rb") as raw, zip_members.open_zip(raw) as file:
            members = file.infolist()
            return members, _corrupt_members(file, members, advance)
    except (*_NOT_A_ZIP, OSError) as error:
        if _is_disk_failure(error):
            raise
        return [], [f"the file itself: its zip directory cannot be read ({error})"]


def _is_disk_failure(error: Exception) -> bool:
    """Returns whether the disk is at fault, and not the archive.

    An OSError of a decompressor has no errno. EINVAL means a seek to a negative offset, which comes
    from a damaged directory.
    """
    return isinstance(error, OSError) and error.errno not in (None, errno.EINVAL)


def _corrupt_members(
    file: zipfile.ZipFile, members: list[zipfile.ZipInfo], advance: _Advance
) -> list[str]:
    corrupt = []
    total = sum(member.file_size for member in members)
    for member in members:
        try:
            with file.open(member) as stream:
                while chunk := stream.read(_READ_BYTES):
                    advance(len(chunk) / total)
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
            f"It was moved to {aside}; delete that to free {byte_text(file_size(aside))}.\n"
            "Run the same command again to download a new one."
        )
    except OSError as error:
        whereabouts = (
            f"It could not be moved aside ({error.strerror}): delete it, then run the same command "
            "again to download a new one."
        )
    with contextlib.suppress(OSError):
        verification_path(archive).unlink(missing_ok=True)
    lines = [f"  {line}" for line in corrupt[:_NAMED_MEMBERS]]
    if len(corrupt) > _NAMED_MEMBERS:
        lines.append(f"  and {len(corrupt) - _NAMED_MEMBERS} more")
    count = f"{len(corrupt)} of its {num_members} members are" if num_members else "it is"
    raise DownloadError(
        "\n".join([f"{archive} has all its bytes, but {count} corrupt:", *lines, whereabouts])
    ) from None
