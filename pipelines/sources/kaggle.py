"""Kaggle: downloads a dataset's archive by the official client, checks it once and keeps it.

The client finds the credentials, resumes a download of the same version, and compares the size.
It writes into a folder of its own; the archive gets its name when the checksum of every member is
right.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shutil
import sys
import zipfile
from pathlib import Path
from typing import Any

import requests

from pipelines import errors
from tfrecord_io.decoding.rejects import is_of_content
from tfrecord_io.stores import file_lock
from tfrecord_io.stores.files import sync_folder

DEFAULT_DATASET = "paultimothymooney/kermany2018"

_HOW_TO_AUTHENTICATE = """\
Kaggle needs credentials, and they are free: generate a token at https://www.kaggle.com/settings/api
and give it as KAGGLE_API_TOKEN, save it as ~/.kaggle/access_token (chmod 600), or run
kaggle auth login. To try the build without an account, run with --source synthetic."""


def download_archive(dataset: str, download_dir: Path) -> Path:
    """Downloads what is missing of a dataset's zip archive, checks it and returns its path.

    The archive is `download_dir/OWNER/NAME.zip`. A file of this name was checked before it got the
    name, and is returned at once, without network or credentials.

    Raises:
        errors.UserError: if Kaggle's client is not installed, no credentials were found, Kaggle
            refused them, or another process is downloading the archive.
        errors.BuildError: if the archive could not be downloaded, or is corrupt.
    """
    archive = download_dir / f"{dataset}.zip"
    if archive.exists():
        return archive
    client = _log_in()  # before any folder is made, so that an error leaves nothing on the disk
    lock = archive.with_name(f".{archive.name}.lock")
    with (
        errors.clear_write_errors(f"{archive} (--download_dir chooses another folder)"),
        file_lock.held(lock, f"downloading {archive}", folder_mode=0o700),
    ):
        if not archive.exists():  # another process may have finished it meanwhile
            part = archive.with_name(f"{archive.name}.part") / archive.name
            try:  # if it fails, the bytes that arrived are kept
                with contextlib.redirect_stdout(sys.stderr):
                    client.dataset_download_files(dataset, path=str(part.parent), quiet=False)
            except (requests.RequestException, ValueError) as error:
                raise _refusal(error, f"download {dataset}") from None
            _require_sound(part)
            with part.open("rb") as file:
                os.fsync(file.fileno())  # the content before the name
            part.replace(archive)
            sync_folder(archive.parent)
            shutil.rmtree(part.parent)
    return archive


def _log_in() -> Any:
    """Returns the official client with the credentials that it finds."""
    try:
        # The import logs in, too, and both print advice if there are no credentials.
        with contextlib.redirect_stdout(io.StringIO()):
            from kaggle.api.kaggle_api_extended import KaggleApi

            client = KaggleApi()
            client.authenticate()
    except ImportError as error:
        raise errors.UserError(
            f"Kaggle's client could not be imported ({error}).\nInstall it with: pip install "
            "'.[kaggle]'\nTo try the build without Kaggle, run with --source synthetic."
        ) from None
    except SystemExit:
        raise errors.UserError(
            f"No Kaggle credentials were found, or only damaged ones.\n{_HOW_TO_AUTHENTICATE}"
        ) from None
    except requests.RequestException as error:
        raise _refusal(error, "log in") from None
    return client


def _refusal(error: Exception, what: str) -> errors.MessageError:
    """Returns the error for what the client raised when it should do something."""
    status = getattr(getattr(error, "response", None), "status_code", None)
    if status == 401:
        return errors.UserError(f"Kaggle refused the credentials.\n{_HOW_TO_AUTHENTICATE}")
    advice = "Run the same command again to resume; check the network and the proxy variables."
    if status in (403, 404):
        advice = (
            "Open the dataset's page in a browser, signed in to the same account: accept its "
            "terms, check its name, or ask its owner for access."
        )
    # An address on the storage host ends in its signature.
    said = re.sub(r"\?\S*", "", " ".join(str(error).split()))[:300]
    return errors.BuildError(f"Kaggle's client could not {what}: {said}\n{advice}")


def _require_sound(part: Path) -> None:
    """Compares the CRC of every member of a complete download; a corrupt one is deleted.

    Raises:
        errors.BuildError: if the download is corrupt.
        OSError: if the disk failed.
    """
    try:
        with zipfile.ZipFile(part) as archive:
            print(f"checking {part.name}", file=sys.stderr)
            damaged = archive.testzip()
            damage = damaged and f"the checksum of {damaged!r} is wrong"
    except Exception as error:
        if not is_of_content(error):
            raise
        damage = f"it cannot be read ({error!r})"
    if damage:
        part.unlink()
        raise errors.BuildError(
            f"the download of {part.name} had all its bytes, but was corrupt: {damage}.\n"
            "Run the same command again to download a new one."
        )
