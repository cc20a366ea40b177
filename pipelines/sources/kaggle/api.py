"""Kaggle's API: finds credentials where the official client does, and asks where an archive is.

It uses `kagglesdk`, the library inside the `kaggle` command. Importing `kaggle` itself would log
in, print and make folders, and would end the process where there are no credentials.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import requests
from requests.adapters import HTTPAdapter
from urllib3 import Retry

from pipelines import errors
from pipelines.sources.downloads import read_json
from tfrecord_io import redaction

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
# Waits for 2, 4, 8 and 16 s, or as long as the server asks.
_RETRY = Retry(
    5,
    backoff_factor=1,
    allowed_methods=None,
    status_forcelist=(408, 429, 500, 502, 503, 504),
    raise_on_status=False,
)


class Login(NamedTuple):
    """Where credentials were found, and a function that returns them for `requests`.

    After `kaggle auth login` the function asks Kaggle for a token, and raises
    `requests.RequestException` if that fails.
    """

    place: str
    auth: Callable[[], Any]


def find_login() -> Login:
    """Returns the credentials that the official client would use, without the network.

    Its order is: access token, user name and key, login with the browser.

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
            return Login(str(place), lambda: KaggleHttpClient.BearerAuth(token))
        stored = _kaggle_json()
        username = os.environ.get("KAGGLE_USERNAME") or stored.get("username")
        key = os.environ.get("KAGGLE_KEY") or stored.get("key")
        if username and key:
            redaction.remember(key)
            return Login("KAGGLE_USERNAME, KAGGLE_KEY or kaggle.json", lambda: (username, key))
        if browser := KaggleCredentials.load(KaggleClient()):
            return Login(
                "~/.kaggle/credentials.json (kaggle auth login)",
                lambda: KaggleHttpClient.BearerAuth(browser.get_access_token()),
            )
    raise errors.UserError(
        "No Kaggle credentials were found, or only empty, incomplete or damaged ones.\n"
        + _HOW_TO_AUTHENTICATE
    )


def _kaggle_json() -> dict[str, Any]:
    config = os.environ.get("XDG_CONFIG_HOME") or "~/.config"
    folders = (os.environ.get("KAGGLE_CONFIG_DIR") or "~/.kaggle", f"{config}/kaggle")
    files = (read_json(Path(folder, "kaggle.json").expanduser()) for folder in folders)
    return next(filter(None, files), {})


def archive_address(dataset: str, login: Login) -> str:
    """Returns the archive's address on a storage host, signed and valid for some minutes.

    The request is that of the official client, which has no time limit. The storage host does not
    get the credentials.

    Raises:
        errors.UserError: if Kaggle refused the credentials.
        errors.BuildError: if Kaggle refused the dataset, or did not answer.
    """
    from kagglesdk import KaggleEnv
    from kagglesdk.kaggle_env import get_endpoint, get_env

    environment = get_env()
    prefix = "" if environment == KaggleEnv.PROD else "/api"
    owner, name = dataset.split("/")
    try:
        with requests.Session() as session:
            for scheme in ("https://", "http://"):
                session.mount(scheme, HTTPAdapter(max_retries=_RETRY))
            response = session.post(
                f"{get_endpoint(environment)}{prefix}/v1/datasets.DatasetApiService/DownloadDataset",
                json={"ownerSlug": owner, "datasetSlug": name},
                auth=login.auth(),
                allow_redirects=False,
                timeout=_TIMEOUT_S,
            )
    except requests.HTTPError as error:  # the login with the browser was refused
        response = error.response
    except requests.RequestException as error:
        raise errors.BuildError(
            f"Kaggle could not be asked for {dataset}: {redaction.without_secrets(str(error))}.\n"
            "Check the network connection and the proxy variables. If a company's proxy has its "
            "own certificates, set REQUESTS_CA_BUNDLE to their file."
        ) from None
    if response.is_redirect:
        return response.headers["Location"]
    raise _refusal(response, dataset, login)


def _refusal(response: requests.Response, dataset: str, login: Login) -> errors.ToldError:
    """Returns the error for an answer without an address."""
    status, text = response.status_code, response.reason
    with contextlib.suppress(ValueError, LookupError, TypeError):
        answer: Any = response.json()
        text = answer["message"]
        # The API may answer 200 and have the status in the answer's JSON.
        status = max(status, answer["code"])
    if status == 401:
        return errors.UserError(
            f"Kaggle refused the credentials, which were found in {login.place}.\n"
            f"They may be mistyped, expired or revoked.\n{_HOW_TO_AUTHENTICATE}"
        )
    # A server may repeat the credentials.
    redaction.remember(response.request.headers.get("Authorization", "").rpartition(" ")[2])
    said = redaction.without_secrets(" ".join(str(text).split()))[:200]
    return errors.BuildError(
        f"Kaggle does not let this account download {dataset} (HTTP {status}: {said}).\n"
        f"Open https://www.kaggle.com/datasets/{dataset} in a browser, signed in to the same "
        "account.\nIf the page asks you to accept terms or rules, or to verify your phone number, "
        "do so. If it does not open, check the name,\nor ask the owner for access.\n"
        "After HTTP 408, 429 or 5xx, run the same command again later. HTTP 200 can be the page of "
        "a network that requires a login in the browser."
    )
