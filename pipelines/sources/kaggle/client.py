"""Asks the official Kaggle client for the address of a dataset's archive.

The client reads the credentials, logs in and asks Kaggle's API for the archive's address, which is
signed and valid for some minutes. `transfer` downloads the bytes, because the client's own download
appends to files that it does not check, writes the body of an error into the archive, and waits
forever on a silent connection. The statements about the client here hold for kaggle 2.2.4; the
tests whose names begin with `test_the_bare_client` prove them.
"""

import contextlib
import functools
import io
import logging
import os
import tempfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any, TypeVar

import requests

from pipelines import errors
from pipelines.sources.kaggle.credentials import Credentials, legacy_folder, refused_text
from pipelines.sources.kaggle.transfer import RemoteArchive

_LOG = logging.getLogger(__name__)
_Result = TypeVar("_Result")

# Variables through which the import would find a login or settings, or become verbose.
_HIDDEN_AT_IMPORT = (
    "KAGGLE_API_TOKEN",
    "KAGGLE_API_V1_TOKEN",
    "KAGGLE_USERNAME",
    "KAGGLE_KEY",
    "KAGGLE_CONFIG_DIR",
    "XDG_CONFIG_HOME",
    "VERBOSE",
    "VERBOSE_OUTPUT",
)


def locate(dataset: str, credentials: Credentials, timeout_s: float) -> RemoteArchive:
    """Logs in with the official client and returns the archive's current address.

    Args:
        dataset: OWNER/NAME.
        credentials: where the credentials are, for the message if Kaggle refuses them.
        timeout_s: seconds that Kaggle has to answer.

    Raises:
        errors.UserError: if Kaggle refuses the credentials.
        errors.BuildError: if the client is missing or cannot be imported.
        requests.RequestException: if the API or the storage refuses, or does not answer in time.
    """
    api = _locating_api()()

    def ask() -> RemoteArchive:
        # In each attempt, because an OAuth token can expire during a long download.
        try:
            api.authenticate()
        except SystemExit:  # raised by the client if no credentials worked
            raise errors.UserError(refused_text(credentials)) from None
        api.dataset_download_files(dataset, path=os.devnull, quiet=True, unzip=False)
        return RemoteArchive.from_response(api.answer)

    return _within(timeout_s, ask)


@functools.cache
def _locating_api() -> Any:
    """Returns the official client, which keeps the storage's answer and downloads nothing.

    It is imported without its side effects.
    """
    try:
        with _no_credentials():
            from kaggle.api.kaggle_api_extended import KaggleApi
    except ImportError as error:
        raise errors.BuildError(
            f"The official Kaggle client could not be imported ({error}).\n"
            "Install it with: pip install kaggle six"
        ) from None

    class LocatingApi(KaggleApi):
        # Removes --verbose, which prints the Authorization header and decodes the archive as text;
        # the environment or another importer of the client may have set it.
        args = [arg for arg in KaggleApi.args if arg != "--verbose"]  # noqa: RUF012
        # The client computes these at import, when `_no_credentials` hides the real folder.
        config_dir = str(legacy_folder())
        config = str(legacy_folder() / "kaggle.json")
        answer: requests.Response

        def download_needed(
            self, response: requests.Response, outfile: str, quiet: bool = True
        ) -> bool:
            self.answer = response
            response.close()
            return False

    return LocatingApi


@contextlib.contextmanager
def _no_credentials() -> Iterator[None]:
    """Hides all credentials from the client's import, so that it does not use the network.

    The import logs in if it can, makes a settings folder in the user's home, and with `VERBOSE`
    sets the root logger to DEBUG.
    """
    before = dict(os.environ)
    with tempfile.TemporaryDirectory() as empty:
        for name in _HIDDEN_AT_IMPORT:
            os.environ.pop(name, None)
        os.environ["HOME"] = empty
        try:
            yield
        finally:
            os.environ.clear()
            os.environ.update(before)


def _within(timeout_s: float, function: Callable[[], _Result]) -> _Result:
    """Calls a function with a time limit and returns its result.

    The client sets no timeout for its requests, so the function runs in a daemon thread, which is
    abandoned if the connection stays silent.

    Raises:
        requests.Timeout: if the function takes longer than `timeout_s` seconds.
        Exception: any error of the function.
    """
    outcome: Future[_Result] = Future()

    def run() -> None:
        try:
            outcome.set_result(function())
        except BaseException as error:
            outcome.set_exception(error)

    threading.Thread(target=run, daemon=True, name="kaggle-client").start()
    try:
        return outcome.result(timeout_s)
    except TimeoutError:
        request = requests.Request("POST", "https://api.kaggle.com/").prepare()
        raise requests.Timeout("Kaggle's API did not answer", request=request) from None


@contextlib.contextmanager
def quiet_client() -> Iterator[None]:
    """Suppresses what the client prints, and the addresses that urllib3 logs at DEBUG.

    A storage address is signed, so anyone who reads it can download the archive.
    """
    output = io.StringIO()
    connections = logging.getLogger("urllib3")
    level = connections.level
    if connections.getEffectiveLevel() < logging.INFO:
        connections.setLevel(logging.INFO)
    try:
        with contextlib.redirect_stdout(output):
            yield
    finally:
        connections.setLevel(level)
        # Warnings help the user (a readable credentials file, an old client) and hold no secret.
        for line in dict.fromkeys(output.getvalue().splitlines()):
            if line.startswith("Warning: "):
                _LOG.warning("The Kaggle client says: %s", line.removeprefix("Warning: "))
