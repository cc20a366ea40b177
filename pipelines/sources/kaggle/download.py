"""Downloads a Kaggle dataset's archive: resumes, retries, checks and keeps it.

A build calls `download_archive` only. `client` asks the official client for the archive's address,
`transfer` downloads the bytes, `problems` explains errors, and `archive_check` reads every member
once and records the check.
"""

import contextlib
import errno
import logging
import os
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from tqdm import tqdm

from pipelines import errors
from pipelines.sources.downloads import byte_bar, raise_disk_error
from pipelines.sources.kaggle.archive_check import is_verified, verify_archive
from pipelines.sources.kaggle.client import locate, quiet_client
from pipelines.sources.kaggle.credentials import Credentials, require_credentials
from pipelines.sources.kaggle.problems import Problem, diagnose
from pipelines.sources.kaggle.transfer import (
    file_size,
    is_finished,
    marker_path,
    partial_note,
    transfer,
)
from pipelines.stores import file_lock
from tfrecord_io.files import sync_folder

DEFAULT_DATASET = "paultimothymooney/kermany2018"

_LOG = logging.getLogger(__name__)
_LONGEST_BACKOFF_S = 60.0
# A longer Retry-After is an error that says how long to wait.
_LONGEST_WAIT_S = 300.0


@dataclass(frozen=True, kw_only=True)
class Retries:
    """How long to wait for Kaggle, and how often to retry.

    Attributes:
        timeout_s: seconds without a byte after which a connection is given up.
        max_retries: number of retries in a row that may fail without a new byte. An attempt that
            makes progress resets the count, so a bad connection still completes the archive.
        backoff_s: seconds before the first retry, doubled for each further one, 60 at most.
    """

    timeout_s: float = 60.0
    max_retries: int = 5
    backoff_s: float = 1.0


def download_archive(dataset: str, download_dir: Path, retries: Retries = Retries()) -> Path:
    """Downloads what is missing of a dataset's zip archive, checks it and returns its path.

    The archive is `download_dir/NAME.zip`. An archive that was checked before is returned at once,
    without network or credentials. A complete archive that the user put there is checked first. A
    partial download is resumed, also one of the client. The check is recorded in
    `NAME.zip.verified.json`, and a corrupt archive is renamed to `NAME.zip.corrupt`.

    If another process is downloading the same archive, an error names its process id at once,
    because waiting silently could take hours.

    Args:
        dataset: OWNER/NAME; see `check_dataset_name`.
        download_dir: folder for the archive, made if it is missing.
        retries: timeouts and retries.

    Raises:
        errors.UserError: if no credentials were found, or Kaggle refused them.
        errors.BuildError: if the archive could not be downloaded, is corrupt, or is in use by
            another process.
    """
    archive = Path(download_dir) / f"{dataset.split('/')[1]}.zip"
    if is_finished(archive):
        if is_verified(archive, dataset):
            _LOG.info("Using %s, downloaded and checked before.", archive)
            return archive
    else:
        # Before any folder is made, so that an error leaves nothing on the disk.
        require_credentials()
    with _made_folder(archive.parent), _locked(archive):
        if not is_finished(archive):
            fetch(dataset, archive, retries)
        if not is_verified(archive, dataset):
            verify_archive(archive, dataset)
    return archive


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


@contextlib.contextmanager
def _made_folder(folder: Path) -> Iterator[None]:
    """Makes a folder with its parents; if the block fails and leaves them empty, removes them."""
    made = [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise_disk_error(error, folder)
    try:
        yield
    except BaseException:
        with contextlib.suppress(OSError):  # raised if it holds a partial download, for instance
            for path in made:
                path.rmdir()
        raise


@contextlib.contextmanager
def _locked(archive: Path) -> Iterator[None]:
    """Locks the archive, because two clients would write into one file (kaggle-cli issue 516).

    The lock ends with the process, so a killed download does not block the next one.
    """
    path = archive.with_name(f".{archive.name}.lock")
    lock = file_lock.held(
        path,
        lambda process: errors.BuildError(
            f"{archive} is being downloaded or checked by another process (process id {process}).\n"
            "Wait until it has finished, then run the same command again to use that archive."
        ),
    )
    with contextlib.ExitStack() as held:
        try:
            held.enter_context(lock)
        except OSError as error:
            # A finished archive in a read-only folder needs no lock, as nothing is written.
            if error.errno not in (errno.EACCES, errno.EROFS) or not is_finished(archive):
                raise_disk_error(error, path)
        yield


def fetch(dataset: str, archive: Path, retries: Retries) -> None:
    """Downloads or resumes until the archive is complete; each attempt asks for a new address.

    Args:
        dataset: OWNER/NAME.
        archive: the file to write; its folder exists, and no other process writes it.
        retries: timeouts and retries.

    Raises:
        errors.UserError: if no credentials were found, or Kaggle refused them.
        errors.BuildError: if the archive could not be downloaded. The bytes that arrived are kept.
    """
    credentials = require_credentials()
    try:
        with (
            quiet_client(),
            byte_bar(f"downloading {archive.name}", initial=file_size(archive)) as bar,
        ):
            _attempt_until_done(dataset, archive, credentials, retries, bar)
    except BaseException:
        _drop_empty(archive)
        raise
    # The marker goes when every byte is on the disk, because a file without one counts as complete.
    try:
        with archive.open("rb") as file:
            os.fsync(file.fileno())
        marker_path(archive).unlink(missing_ok=True)
        sync_folder(archive.parent)
    except OSError as error:
        raise_disk_error(error, archive, partial_note(archive))


def _attempt_until_done(
    dataset: str, archive: Path, credentials: Credentials, retries: Retries, bar: tqdm
) -> None:
    failures = 0
    furthest = file_size(archive)
    while True:
        try:
            remote = locate(dataset, credentials, retries.timeout_s)
            transfer(remote, archive, bar, retries.timeout_s)
            return
        except (errors.UserError, errors.BuildError):
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
        if wait_s > _LONGEST_WAIT_S:
            asked = f" It asks to wait {wait_s:.0f} s; run the same command again after that."
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
    """Removes an empty archive and its marker, so that a failed start leaves no files."""
    with contextlib.suppress(OSError):
        if file_size(archive) == 0:
            archive.unlink(missing_ok=True)
            marker_path(archive).unlink(missing_ok=True)
