"""The check of a downloaded zip: every member's CRC, read once and remembered in a sidecar.

The archive is known again by its size and time. A corrupt one is moved aside.
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
_NAMED_MEMBERS = 5  # Members that an error names before it counts the rest.


@dataclass(frozen=True, kw_only=True)
class Verification:
    """What is remembered of an archive whose every member was read and had the right CRC.

    Attributes:
        dataset: OWNER/NAME that the archive was downloaded as.
        size: Bytes of the archive.
        mtime_ns: Its modification time in nanoseconds since 1970. Size and time together are how
            the archive is known again without reading it.
        sha256: Of the whole archive, 64 hex digits.
        num_members: Members in the zip, folders included.
        member_bytes: Bytes of all members, unpacked.
    """

    dataset: str
    size: int
    mtime_ns: int
    sha256: str
    num_members: int
    member_bytes: int


def verify_archive(archive: Path, *, dataset: str, progress: bool = True) -> Verification:
    """Reads every member of a zip and compares its CRC; hashes the archive at the same time.

    Streams: memory holds a chunk of one member, and the zip's directory (about 0.7 kB a member).

    A corrupt archive is moved aside to `NAME.zip.corrupt`, over an older one, instead of deleted
    or left: the next run starts a fresh download, 11 GB are not thrown away unasked, and not more
    than one such file is ever there.

    Args:
        archive: The zip file.
        dataset: OWNER/NAME, to be remembered.
        progress: Whether to draw a progress bar on stderr.

    Raises:
        DownloadError: The archive is corrupt, and the message names the members; or the disk
            failed.
    """
    give_up = threading.Event()
    try:
        before = archive.stat()
        with (
            _check_bar(archive, before.st_size, progress) as advance,
            ThreadPoolExecutor(max_workers=1) as pool,
        ):
            # Beside the CRCs, not after them: hashlib and zlib both let other threads run.
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
    """Returns what is remembered of an archive, or None where it has changed or was never checked.

    Args:
        archive: The zip file; the sidecar `NAME.zip.verified.json` is read beside it.
    """
    try:
        verification = Verification(**read_json(verification_path(archive)))
        stat = archive.stat()
    except (TypeError, OSError):
        return None
    is_same = (verification.size, verification.mtime_ns) == (stat.st_size, stat.st_mtime_ns)
    return verification if is_same else None


def verification_path(archive: Path) -> Path:
    """Returns where the check of an archive is remembered."""
    return archive.with_name(archive.name + ".verified.json")


def is_verified(archive: Path, dataset: str) -> bool:
    """Tells whether an archive was checked and has not changed since.

    Raises:
        DownloadError: if it was checked as the archive of another dataset of the same NAME.
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
    """Writes the sidecar; where that is not possible, only warns, as the archive is good."""
    path = verification_path(archive)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.write_text(json.dumps(asdict(verification), indent=1) + "\n", encoding="utf-8")
        temporary.replace(path)
    except OSError as error:  # A folder that others keep: the archive is good all the same.
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
    """Gives a function that takes a share of the archive, 1 for all of it, from any thread.

    The archive is read twice at once, for the CRCs and for the hash. Either may be the slower, so
    each counts for half.
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
    """Returns all members, and a line for each that is corrupt (one for a file that is no zip)."""
    try:
        with archive.open("rb") as raw, zip_members.open_zip(raw) as file:
            members = file.infolist()
            return members, _corrupt_members(file, members, advance)
    except (*_NOT_A_ZIP, OSError) as error:
        if _is_disk_failure(error):
            raise
        return [], [f"the file itself: no readable zip directory ({error})"]


def _is_disk_failure(error: Exception) -> bool:
    """Tells whether the disk failed, and not the archive.

    A decompressor's OSError has no number, and EINVAL comes from seeking to a negative offset,
    which a damaged directory asks for.
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


# What zipfile and the decompressors raise on damaged bytes; bz2's is an OSError without a number.
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
