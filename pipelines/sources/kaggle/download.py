"""Downloads a Kaggle dataset's archive: resumes, retries, checks and keeps it.

A partial archive has a marker beside it, `NAME.zip.kaggle-partial`, with the remote file's
validator (its ETag, or else its time) and size. The official client writes the same marker, so each
can resume the other's download. An archive without a marker is complete.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import shutil
from pathlib import Path

import requests
from tqdm import tqdm
from urllib3 import Retry
from urllib3.exceptions import InvalidHeader, MaxRetryError

from pipelines import errors
from pipelines.sources.downloads import byte_bar, byte_text, raise_disk_error, read_json
from pipelines.sources.kaggle.archive_check import is_verified, verify_archive
from pipelines.sources.kaggle.login import Login, find_login
from pipelines.sources.kaggle.problems import WrongAnswerError, explain
from pipelines.stores import file_lock
from tfrecord_io.files import atomic_write, sync_folder

DEFAULT_DATASET = "paultimothymooney/kermany2018"

_LOG = logging.getLogger(__name__)
# A broken connection loses the current chunk, so small chunks lose less on a bad connection.
_CHUNK_BYTES = 1 << 18
_TIMEOUT_S = 60.0  # without a byte, after which a connection is given up
# Retries in a row without a new byte: at once, then after 2, 4, 8 and 16 s, or as the server asks.
_RETRY = Retry(5, backoff_factor=1)


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


def download_archive(
    dataset: str, download_dir: Path, retry: Retry = _RETRY, timeout_s: float = _TIMEOUT_S
) -> Path:
    """Downloads what is missing of a dataset's zip archive, checks it and returns its path.

    The archive is `download_dir/NAME.zip`. One that was checked before is returned at once, without
    network or credentials; a complete one that the user put there is checked first. If another
    process is downloading it, an error names that process at once: waiting could take hours.

    Args:
        dataset: OWNER/NAME; see `check_dataset_name`.
        download_dir: folder for the archive, made if it is missing.
        retry: how often to retry in a row without a new byte, and how long to wait.
        timeout_s: seconds without a byte after which a connection is given up.

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
                fetch(dataset, archive, retry, timeout_s)
            if not is_verified(archive, dataset):
                verify_archive(archive, dataset)
    except OSError as error:
        raise_disk_error(error, archive, _kept_text(archive))
    return archive


def fetch(
    dataset: str, archive: Path, retry: Retry = _RETRY, timeout_s: float = _TIMEOUT_S
) -> None:
    """Downloads or resumes until the archive is complete; see `download_archive`.

    Nobody else may write the file meanwhile. If it raises, the bytes that arrived are kept.
    """
    login, left = find_login(), retry
    with byte_bar(f"downloading {archive.name}", initial=_size(archive)) as bar:
        while True:
            before = _size(archive)
            try:
                _attempt(dataset, archive, login, bar, timeout_s)
                break
            except requests.RequestException as error:
                message = explain(error, dataset, login, timeout_s)
                left = retry if _size(archive) > before else left
                left = _after_waiting(left, error, message, archive)
    # The marker goes when all bytes are on the disk: a file without one counts as complete.
    with archive.open("rb") as file:
        os.fsync(file.fileno())
    _marker(archive).unlink()
    sync_folder(archive.parent)


def _after_waiting(
    retry: Retry, error: requests.RequestException, message: str, archive: Path
) -> Retry:
    """Waits before the next attempt, and returns the retries that are left after it.

    Raises:
        errors.BuildError: if none is left.
    """
    try:
        retry = retry.increment()
    except MaxRetryError:
        tried = f"Tried {len(retry.history) + 1} times."
        lines = filter(None, [message, tried, _kept_text(archive)])
        raise errors.BuildError("\n".join(lines)) from None
    _LOG.warning("%s Trying again (retries left: %d).", message.splitlines()[0], retry.total)
    with contextlib.suppress(InvalidHeader):  # a Retry-After that is neither a number nor a date
        retry.sleep(None if error.response is None else error.response.raw)
    return retry


def _attempt(dataset: str, archive: Path, login: Login, bar: tqdm, timeout_s: float) -> None:
    """Downloads what is missing of an archive; the marker stays.

    Bytes on the disk are kept if they belong to the same version; otherwise the download starts
    again.

    Raises:
        errors.BuildError: if the disk has too little space.
        requests.RequestException: if a host refuses, stops sending or sends something else. The
            file keeps the bytes that arrived.
    """
    marker = read_json(_marker(archive))
    start = _size(archive) if marker.get("validator") else 0
    if start and start == marker.get("size"):
        return
    headers = {"Accept-Encoding": "identity", "User-Agent": "scan-tfrecords"}
    if start:
        headers |= {"Range": f"bytes={start}-", "If-Range": marker["validator"]}
    with _request(dataset, login, headers, timeout_s) as response:
        response.raise_for_status()
        kind = response.headers.get("Content-Type", "").split(";")[0].strip().lower()
        if kind.startswith("text/") or kind in ("application/json", "application/xml"):
            raise WrongAnswerError(f"expected a zip archive, got {kind}", request=response.request)
        length = response.headers.get("Content-Length", "")
        num_bytes = int(length) if length.isdecimal() else None
        if response.status_code == 206:
            sent = response.headers.get("Content-Range", "")
            if not start or not sent.startswith(f"bytes {start}-"):
                problem = f"asked for bytes from {start}, got {sent!r}"
                raise WrongAnswerError(problem, request=response.request)
            # A host that does not know If-Range sends the rest of the new version.
            is_e_tag = marker["validator"].endswith('"')
            there = response.headers.get("ETag" if is_e_tag else "Last-Modified")
            if there not in (None, marker["validator"]):
                os.truncate(archive, 0)
                problem = "the archive has changed, so its download starts again"
                raise WrongAnswerError(problem, request=response.request)
            _check_free_space(num_bytes, archive)
        else:  # all of it: the archive has changed, or the host sends no parts
            start = 0
            if _size(archive):
                # The old bytes go first: the marker of the new version would vouch for them.
                with archive.open("wb") as file:
                    os.fsync(file.fileno())
            _check_free_space(num_bytes, archive)
            # The marker is on the disk first: without it, a partial file would count as complete.
            validator = response.headers.get("ETag") or response.headers.get("Last-Modified")
            with atomic_write(_marker(archive)) as file:
                file.write(json.dumps({"validator": validator, "size": num_bytes}).encode())
            sync_folder(archive.parent)
        bar.total = None if num_bytes is None else start + num_bytes
        bar.update(start - bar.n)
        with archive.open("ab" if start else "wb") as file:
            for chunk in response.iter_content(_CHUNK_BYTES):
                file.write(chunk)
                bar.update(len(chunk))


def _request(
    dataset: str, login: Login, headers: dict[str, str], timeout_s: float
) -> requests.Response:
    """Asks Kaggle for an archive, as the official client does, and follows it to the storage.

    Kaggle answers with the archive's address on a storage host, which is signed and valid for some
    minutes. The client itself has no time limit, and cannot ask for a part.
    """
    from kagglesdk import KaggleClient, KaggleCredentials, KaggleEnv
    from kagglesdk.kaggle_env import get_endpoint, get_env

    token = login.token
    if not token and not login.key:
        with KaggleClient() as client:
            token = KaggleCredentials.load(client).get_access_token()

    def authorize(request: requests.PreparedRequest) -> requests.PreparedRequest:
        request.headers["Authorization"] = f"Bearer {token}"
        return request

    environment = get_env()
    prefix = "" if environment == KaggleEnv.PROD else "/api"
    owner, name = dataset.split("/")
    response = requests.post(
        f"{get_endpoint(environment)}{prefix}/v1/datasets.DatasetApiService/DownloadDataset",
        json={"ownerSlug": owner, "datasetSlug": name},
        auth=authorize if token else (login.username, login.key),
        headers=headers,
        stream=True,
        timeout=timeout_s,
    )
    with contextlib.suppress(ValueError, LookupError, TypeError):
        if "json" in response.headers["Content-Type"]:
            # The API may answer 200 and have the status in the answer's JSON.
            response.status_code = max(response.status_code, response.json()["code"])
    return response


def _check_free_space(num_bytes: int | None, archive: Path) -> None:
    """Raises a `BuildError` if the disk has too little space for so many more bytes."""
    free = shutil.disk_usage(archive.parent).free
    if num_bytes and num_bytes > free:
        raise errors.BuildError(
            f"{archive.parent} has {byte_text(free)} free, but {archive.name} needs "
            f"{byte_text(num_bytes)} more.\n"
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
    size = _size(archive)
    return f"{byte_text(size)} are kept: run the same command again to resume." if size else ""
