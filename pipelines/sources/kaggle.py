"""Kaggle: downloads a dataset's archive once; resumes, retries, checks and keeps it.

Credentials are found where the official client finds them, with `kagglesdk`, the library inside the
`kaggle` command. Importing `kaggle` itself would log in, print and make folders; and it would
end this process if there are no credentials.

The parts of an archive are read like those of any zip on a web server, several of them at the same
time. Until all bytes are there, the file is named after the version that Kaggle has,
`NAME.zip.VERSION.part`, so a download resumes that version and no other.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import requests
from tqdm import tqdm
from tqdm.utils import CallbackIOWrapper

from pipelines import errors
from tfrecord_io.decoding.rejects import is_of_content
from tfrecord_io.stores import archives, file_lock, remote
from tfrecord_io.stores.ahead import map_ahead
from tfrecord_io.stores.files import read_json, sync_folder, write_json
from tfrecord_io.terminal import printing

DEFAULT_DATASET = "paultimothymooney/kermany2018"

_LOG = logging.getLogger(__name__)
# A killed download loses the parts that were on their way.
_PART_BYTES = 1 << 20
_NUM_PARTS_AT_ONCE = 8

_HOW_TO_AUTHENTICATE = """\
Kaggle needs credentials, and they are free: sign in at https://www.kaggle.com, open
https://www.kaggle.com/settings/api and generate a token. Then do one of these:
  export KAGGLE_API_TOKEN=TOKEN        the token itself, or the path of a file that holds it
  save it as ~/.kaggle/access_token    (chmod 600)
  kaggle auth login                    log in with the browser (OAuth), no token to copy
or, with a legacy API key (a user name and a key):
  export KAGGLE_USERNAME=NAME KAGGLE_KEY=KEY
  save its kaggle.json as ~/.kaggle/kaggle.json    (chmod 600)
To try the build without an account, run with --source synthetic, which needs no credentials."""

_TIMEOUT_S = 60.0
# Answers of a busy server, which is asked again.
_BUSY = (408, 429, 500, 502, 503, 504)


#: Where credentials were found, and a function that returns them for `requests`.
Login = tuple[str, Callable[[], Any]]


def find_login() -> Login:
    """Returns the credentials that the official client would use, without the network.

    Its order is: access token, user name and key, login with the browser. After such a login the
    function asks Kaggle for a token, and raises `requests.RequestException` if that fails.

    Raises:
        errors.UserError: if there are none; the message says how to get and set them.
        errors.BuildError: if the official library is not installed.
    """
    try:
        from kagglesdk import KaggleClient, KaggleCredentials, get_access_token_from_env
        from kagglesdk.kaggle_http_client import KaggleHttpClient
    except ImportError as error:
        raise errors.BuildError(
            f"Kaggle's library could not be imported ({error}).\nInstall it with: pip install "
            "kaggle six\nTo try the build without Kaggle, run with --source synthetic."
        ) from None
    # What the library raises for a file that cannot be read, or a token longer than a path.
    with contextlib.suppress(OSError, ValueError, AttributeError):
        token, place = get_access_token_from_env()
        if token:
            return str(place), lambda: KaggleHttpClient.BearerAuth(token)
        config = os.environ.get("XDG_CONFIG_HOME") or "~/.config"
        folders = (os.environ.get("KAGGLE_CONFIG_DIR") or "~/.kaggle", f"{config}/kaggle")
        files = (read_json(Path(folder, "kaggle.json").expanduser()) for folder in folders)
        stored = next(filter(None, files), {})
        username = os.environ.get("KAGGLE_USERNAME") or stored.get("username")
        key = os.environ.get("KAGGLE_KEY") or stored.get("key")
        if username and key:
            return "KAGGLE_USERNAME, KAGGLE_KEY or kaggle.json", lambda: (username, key)
        if browser := KaggleCredentials.load(KaggleClient()):
            place = "~/.kaggle/credentials.json (kaggle auth login)"
            return place, lambda: KaggleHttpClient.BearerAuth(browser.get_access_token())
    raise errors.UserError(
        "No Kaggle credentials were found, or only empty, incomplete or damaged ones.\n"
        + _HOW_TO_AUTHENTICATE
    )


def archive_address(dataset: str, login: Login) -> str:
    """Returns the archive's address on a storage host, signed and valid for some minutes.

    The request is that of the official client, which has no time limit. The storage host does not
    get the credentials.

    Raises:
        errors.UserError: if Kaggle refused the credentials.
        errors.BuildError: if Kaggle refused the dataset.
        errors.StoreError: if Kaggle did not answer, or is busy.
    """
    from kagglesdk import KaggleEnv
    from kagglesdk.kaggle_env import get_endpoint, get_env

    environment, (place, auth) = get_env(), login
    prefix = "" if environment == KaggleEnv.PROD else "/api"
    owner, name = dataset.split("/")
    try:
        response = requests.post(
            f"{get_endpoint(environment)}{prefix}/v1/datasets.DatasetApiService/DownloadDataset",
            json={"ownerSlug": owner, "datasetSlug": name},
            auth=auth(),
            allow_redirects=False,
            timeout=_TIMEOUT_S,
        )
    except requests.HTTPError as error:  # the login with the browser was refused
        response = error.response
    except requests.RequestException as error:
        raise errors.StoreError(
            f"Kaggle could not be asked for {dataset}: {error}.\n"
            "Check the network connection and the proxy variables. If a company's proxy has its "
            "own certificates, set REQUESTS_CA_BUNDLE to their file"
        ) from None
    if response.is_redirect:
        return response.headers["Location"]
    refusal = _refusal(response, dataset, place)
    raise errors.StoreError(str(refusal)) if response.status_code in _BUSY else refusal


def _refusal(response: requests.Response, dataset: str, place: str) -> errors.ToldError:
    """Returns the error for an answer without an address; the credentials are from `place`."""
    status, text = response.status_code, response.reason
    with contextlib.suppress(ValueError, LookupError, TypeError):
        answer: Any = response.json()
        text = answer["message"]
        # The API may answer 200 and have the status in the answer's JSON.
        status = max(status, answer["code"])
    if status == 401:
        return errors.UserError(
            f"Kaggle refused the credentials, which were found in {place}.\n"
            f"They may be mistyped, expired or revoked.\n{_HOW_TO_AUTHENTICATE}"
        )
    said = " ".join(str(text).split())[:200]
    return errors.BuildError(
        f"Kaggle does not let this account download {dataset} (HTTP {status}: {said}).\n"
        f"Open https://www.kaggle.com/datasets/{dataset} in a browser, signed in to the same "
        "account.\nIf the page asks you to accept terms or rules, or to verify your phone number, "
        "do so. If it does not open, check the name,\nor ask the owner for access.\n"
        "After HTTP 408, 429 or 5xx, run the same command again later. HTTP 200 can be the page of "
        "a network that requires a login in the browser."
    )


def download_archive(dataset: str, download_dir: Path) -> Path:
    """Downloads what is missing of a dataset's zip archive, checks it and returns its path.

    The archive is `download_dir/NAME.zip`. A file of this name is returned at once, without network
    or credentials: it was checked before it got the name, or the user put it there. If another
    process is downloading it, an error names that process at once: waiting could take hours.

    Raises:
        errors.UserError: if no credentials were found, or Kaggle refused them.
        errors.BuildError: if the archive could not be downloaded, is corrupt, belongs to another
            dataset of the same NAME, or is in use by another process.
    """
    archive = download_dir / f"{dataset.split('/')[1]}.zip"
    note = archive.with_name(f"{archive.name}.verified.json")
    if not archive.exists():
        find_login()  # Before any folder is made, so that an error leaves nothing on the disk.
        lock, doing = archive.with_name(f".{archive.name}.lock"), f"downloading {archive}"
        with (
            errors.clear_write_errors(f"{archive} (--download_dir chooses another folder)"),
            file_lock.held(lock, doing, errors.BuildError, folder_mode=0o700),
        ):
            if not archive.exists():  # another process may have finished it meanwhile
                part = fetch(dataset, archive)
                require_sound(part, archive)
                write_json(note, {"dataset": dataset})
                part.replace(archive)
                sync_folder(archive.parent)
    if (other := str(read_json(note).get("dataset", dataset))).lower() != dataset.lower():
        raise errors.BuildError(
            f"{archive} is the archive of {other}, not of {dataset}: the two have the same NAME.\n"
            "Choose another folder with --download_dir."
        )
    _LOG.info("Using %s.", archive)
    return archive


def fetch(dataset: str, archive: Path) -> Path:
    """Downloads or resumes until the archive is complete; returns it under its partial name.

    Nobody else may write the file meanwhile. If it raises, the bytes that arrived are kept.
    """
    login = find_login()
    with printing.bar(desc=f"downloading {archive.name}", unit="B", unit_scale=True) as bar:

        def attempt() -> Path:
            try:
                return _attempt(dataset, archive, login, bar)
            except FileNotFoundError as error:
                raise errors.StoreError(f"{error} does not exist") from None
            except errors.StoreError as error:
                # The next attempt may find another version, and has a new address.
                raise errors.StoreError(str(error)) from None

        try:
            return remote.patiently(attempt, progress=lambda: _num_arrived(archive))
        except errors.StoreError as error:
            arrived = tqdm.format_sizeof(_num_arrived(archive), "B")
            raise errors.BuildError(
                f"The download was interrupted: {error}\n"
                f"Run the same command again to resume with the {arrived} that arrived."
            ) from None


def _attempt(dataset: str, archive: Path, login: Login, bar: tqdm) -> Path:
    """Downloads what is missing of an archive; returns the whole file, under its partial name.

    Raises:
        errors.BuildError: if Kaggle refuses, or the disk has too little space.
        errors.StoreError, FileNotFoundError: if Kaggle does not answer, or the storage refuses,
            stops sending or has another version now.
    """
    url = archive_address(dataset, login)
    file = remote.describe(url)
    part = archive.with_name(f"{archive.name}.{file.size}-{file.version:x}.part")
    for other in set(_parts(archive)) - {part}:
        other.unlink()
    start = _num_arrived(archive)
    free = shutil.disk_usage(archive.parent).free
    if file.size - start > free:
        raise errors.BuildError(
            f"{archive.parent} has {tqdm.format_sizeof(free, 'B')} free, but {archive.name} needs "
            f"{tqdm.format_sizeof(file.size - start, 'B')} more.\n"
            "Free some space, or choose another folder with --download_dir."
        )
    bar.total = file.size
    bar.update(start - bar.n)

    def read(place: int) -> memoryview:
        return remote.read_once(url, place, min(_PART_BYTES, file.size - place), file.mark)

    places = range(start, file.size, _PART_BYTES)
    with part.open("ab") as target:
        for block in map_ahead(read, places, _NUM_PARTS_AT_ONCE, num_threads=_NUM_PARTS_AT_ONCE):
            target.write(block)
            bar.update(len(block))
        target.flush()
        os.fsync(target.fileno())
    return part


def _parts(archive: Path) -> list[Path]:
    return list(archive.parent.glob(f"{archive.name}.*.part"))


def _num_arrived(archive: Path) -> int:
    """Returns the size in bytes of a partial archive."""
    return sum(part.stat().st_size for part in _parts(archive))


def require_sound(part: Path, archive: Path) -> None:
    """Compares the CRC of every member of a complete download, which will be named `archive`.

    A corrupt one is renamed to `NAME.zip.corrupt`, so that the next run starts a new download and
    11 GB are not deleted without the user's consent.

    Raises:
        errors.BuildError: if the download is corrupt.
        OSError: if the disk failed.
    """
    damage, title = None, f"checking {archive.name}"
    try:
        with (
            part.open("rb") as raw,
            printing.bar(desc=title, total=part.stat().st_size, unit="B", unit_scale=True) as bar,
            archives.open_zip(CallbackIOWrapper(bar.update, raw, "read")) as file,
        ):
            bar.reset()  # what was read so far is the index
            if member := file.testzip():
                damage = f"the checksum of {member!r} is wrong"
    except Exception as error:
        if not is_of_content(error):
            raise
        damage = f"it cannot be read ({error!r})"
    if damage:
        aside = part.rename(archive.with_name(f"{archive.name}.corrupt"))
        raise errors.BuildError(
            f"the download of {archive} has all its bytes, but is corrupt: {damage}.\n"
            f"It was moved to {aside}, which you may delete.\n"
            "Run the same command again to download a new one."
        )
