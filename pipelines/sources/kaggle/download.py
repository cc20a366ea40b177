"""Kaggle source: a dataset's whole archive, kept, resumed and checked.

`download_archive` is all that a build needs. `client` asks the official client for the archive's
address, `transfer` brings the bytes, `problems` says what went wrong, and `archive_check` reads
every member once and remembers that it did.
"""

import contextlib
import errno
import logging
import os
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from pipelines.sources.downloads import (
    DownloadError,
    byte_bar,
    file_size,
    is_finished,
    made_folder,
    marker_path,
    partial_note,
    raise_disk_error,
)
from pipelines.sources.kaggle.archive_check import (
    is_verified,
    remember,
    verify_archive,
)
from pipelines.sources.kaggle.client import Client, quiet_client
from pipelines.sources.kaggle.credentials import Credentials, require_credentials
from pipelines.sources.kaggle.problems import Problem, diagnose
from pipelines.sources.kaggle.transfer import transfer
from pipelines.stores import file_lock

DEFAULT_DATASET = "paultimothymooney/kermany2018"

_LOG = logging.getLogger(__name__)
_LONGEST_BACKOFF_S = 60.0


@dataclass(frozen=True, kw_only=True)
class Retries:
    """How long to wait for Kaggle, and how often.

    Attributes:
        timeout_s: Seconds without a byte after which a connection counts as dead.
        max_retries: Attempts in a row that may bring no new byte before it is an error. Attempts
            that bring the file further do not count, so a bad line still ends with the archive.
        backoff_s: Seconds before the first retry; doubled for each further one, 60 at most.
        longest_wait_s: A Retry-After longer than this is an error that says when to come back.
    """

    timeout_s: float = 60.0
    max_retries: int = 5
    backoff_s: float = 1.0
    longest_wait_s: float = 300.0

    def __post_init__(self):
        """Refuses values that make no sense, with a ValueError that names them."""
        if not self.timeout_s > 0:
            raise ValueError(f"timeout_s must be more than 0, got {self.timeout_s}.")
        for name in ("max_retries", "backoff_s", "longest_wait_s"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must be 0 or more, got {getattr(self, name)}.")


def download_archive(
    dataset: str,
    download_dir: Path,
    *,
    progress: bool = True,
    retries: Retries | None = None,
    check_members: bool = True,
) -> Path:
    """Returns a dataset's complete, checked zip archive, after downloading what is missing of it.

    An archive that was checked before is returned at once, without network or credentials; so is,
    after its check, one that was put there by hand. A partial download is resumed, the client's own
    included. The archive is `download_dir/NAME.zip`; what is known of it lies beside it in
    `NAME.zip.verified.json`, and a corrupt one is moved aside to `NAME.zip.corrupt`.

    A second process on the same archive does not wait, which could take hours in silence: it gets
    an error that names the first one's process id.

    Args:
        dataset: OWNER/NAME, as in https://www.kaggle.com/datasets/OWNER/NAME.
        download_dir: Folder for the archive, made where it is missing.
        progress: Whether to draw progress bars on stderr.
        retries: Time-outs and retries; `Retries()` by default.
        check_members: Whether to read every member and compare its CRC.

    Raises:
        CredentialsError: No credentials were found, or Kaggle refused them.
        DownloadError: Anything else that keeps the archive from being there and whole.
    """
    name = _archive_name(dataset)
    archive = Path(download_dir) / name

    def is_checked() -> bool:
        return not check_members or is_verified(archive, dataset)

    if is_finished(archive) and is_checked():
        _LOG.info("Using %s, downloaded and checked before.", archive)
        return archive
    # Before anything is made on disk: without credentials nothing at all is left behind.
    credentials = None if is_finished(archive) else require_credentials()
    with made_folder(archive.parent), _locked(archive):
        if not is_finished(archive):
            _fetch(dataset, archive, credentials or require_credentials(), progress, retries)
        if not is_checked():
            remember(archive, verify_archive(archive, dataset=dataset, progress=progress))
    return archive


def check_dataset_name(dataset: str) -> None:
    """Checks that a dataset's name has the form OWNER/NAME.

    Raises:
        ValueError: if it has not.
    """
    slug = r"[A-Za-z0-9][A-Za-z0-9_-]*"
    if not re.fullmatch(f"{slug}/{slug}", dataset):
        raise ValueError(
            f"A Kaggle dataset is named OWNER/NAME, such as {DEFAULT_DATASET}; got {dataset!r}.\n"
            "Take both from the dataset's address, https://www.kaggle.com/datasets/OWNER/NAME."
        )


def _archive_name(dataset: str) -> str:
    try:
        check_dataset_name(dataset)
    except ValueError as error:
        raise DownloadError(str(error)) from None
    return dataset.split("/")[1] + ".zip"


@contextlib.contextmanager
def _locked(archive: Path) -> Iterator[None]:
    """Holds the archive's lock: two clients would write into one file (kaggle-cli issue 516).

    The system drops a flock with its process, so a killed download locks nobody out.
    """
    path = archive.with_name(f".{archive.name}.lock")
    try:
        descriptor = file_lock.acquire(path)
    except BlockingIOError:
        raise DownloadError(
            f"{archive} is being downloaded or checked by another process "
            f"(process id {file_lock.holder(path)}).\n"
            "Wait until it has finished, then run the same command again: it will use that archive."
        ) from None
    except OSError as error:
        # A finished archive in a folder that others keep: there is nothing to write, so no lock.
        if error.errno not in (errno.EACCES, errno.EROFS) or not is_finished(archive):
            raise_disk_error(error, path)
        yield
        return
    try:
        yield
    finally:
        path.unlink(missing_ok=True)  # While it is still held: see file_lock.
        os.close(descriptor)


def _fetch(
    dataset: str,
    archive: Path,
    credentials: Credentials,
    progress: bool,
    retries: Retries | None,
) -> None:
    """Downloads or resumes until all bytes are there; each attempt gets a fresh storage address."""
    retries = retries or Retries()
    retries = retries or Retries()
    description = f"downloading {archive.name}"
    try:
        with (
            quiet_client(),
            byte_bar(description, initial=file_size(archive), disable=not progress) as bar,
        ):
            client = Client(credentials, retries.timeout_s)

            def attempt() -> None:
                transfer(client.locate(dataset), archive, bar, retries.timeout_s)

            _attempt_until_done(attempt, dataset, archive, credentials, retries)
    except BaseException:
        _drop_empty(archive)
        raise
    marker_path(archive).unlink(missing_ok=True)


def _attempt_until_done(
    attempt: Callable[[], None],
    dataset: str,
    archive: Path,
    credentials: Credentials,
    retries: Retries,
) -> None:
    failures = 0
    furthest = file_size(archive)
    while True:
        try:
            attempt()
            return
        except DownloadError:
            raise
        except Exception as error:
            problem = diagnose(error, dataset, archive, credentials, retries.timeout_s)
        if file_size(archive) > furthest:
            failures, furthest = 0, file_size(archive)
        failures += 1
        wait_s = min(retries.backoff_s * 2 ** (failures - 1), _LONGEST_BACKOFF_S)
        if problem.wait_s is not None:
            wait_s = problem.wait_s
        if not problem.is_transient or failures > retries.max_retries:
            tries = f" Tried {failures} times." if failures > 1 else ""
            _raise_problem(problem, tries, archive)
        if wait_s > retries.longest_wait_s:
            asked = f" It asks to wait {wait_s:.0f} s: run the same command again after that."
            _raise_problem(problem, asked, archive)
        _LOG.warning(
            "%s Trying again in %.1f s (retry %d of %d).",
            problem.message.splitlines()[0],
            wait_s,
            failures,
            retries.max_retries,
        )
        time.sleep(wait_s)


def _raise_problem(problem: Problem, addition: str, archive: Path) -> NoReturn:
    lines = [problem.message + addition, problem.advice, partial_note(archive)]
    raise problem.error("\n".join(filter(None, lines))) from None


def _drop_empty(archive: Path) -> None:
    """Removes a file of no bytes and its marker, so that a failed start leaves nothing behind."""
    with contextlib.suppress(OSError):
        if file_size(archive) == 0:
            archive.unlink(missing_ok=True)
            marker_path(archive).unlink(missing_ok=True)
