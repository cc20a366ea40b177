"""Asks Kaggle's API for the address of a dataset's archive, and explains its refusals."""

from __future__ import annotations

import contextlib
import logging
from typing import Any

import requests
from requests.adapters import HTTPAdapter
from urllib3 import BaseHTTPResponse, Retry

from pipelines import errors
from pipelines.sources.kaggle.login import Login, refused
from tfrecord_io import redaction

_LOG = logging.getLogger(__name__)
_TIMEOUT_S = 60.0
_OF_PROXIES = "A proxy, or a network that requires a login in the browser, may answer in its place."


class _Retry(Retry):
    """Waits for 2, 4, 8 and 16 s, or as long as the server asks, and says so."""

    def sleep(self, response: BaseHTTPResponse | None = None) -> None:
        wait = response.headers.get("Retry-After", "")[:30] if response else ""
        cause = f"answers HTTP {response.status}" if response else "does not answer"
        asked = f", Retry-After: {wait}" if wait else ""
        _LOG.warning("Kaggle %s%s; trying again (retries left: %d)", cause, asked, self.total)
        super().sleep(response)


_RETRY = _Retry(
    5,
    backoff_factor=1,
    allowed_methods=None,
    status_forcelist=(408, 429, 500, 502, 503, 504),
    raise_on_status=False,
)


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
        raise _refusal(error.response, dataset, login) from None
    except requests.RequestException as error:
        raise errors.BuildError(
            f"Kaggle could not be asked for {dataset}: {_cause(error)}.\n"
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
        return refused(login)
    address = f"https://www.kaggle.com/datasets/{dataset}"
    said = f"HTTP {status}: {_without_login(text, response, login)}"
    if status == 403:
        message = (
            f"Kaggle does not let this account download {dataset} ({said}).\n"
            f"Open {address} in a browser, signed in to the same account.\n"
            "If the page asks you to accept terms or rules, or to verify your phone number, do so. "
            "If it does not open, check the name,\nor ask the owner for access: a private dataset "
            "is refused in the same way."
        )
    elif status == 404:
        message = f"Kaggle has no dataset {dataset} ({said}).\nCheck the name at {address}."
    elif status in _RETRY.status_forcelist:
        message = f"Kaggle has a temporary error ({said}).\nRun the same command again later."
    elif status < 400:
        message = f"Kaggle did not answer with the archive's address ({said}).\n{_OF_PROXIES}"
    else:
        message = f"Kaggle refused the download of {dataset} ({said})."
    return errors.BuildError(message)


def _without_login(text: object, response: requests.Response, login: Login) -> str:
    """Returns the API's own text as one short line; a server may repeat credentials in it."""
    sent = response.request.headers.get("Authorization", "").rpartition(" ")[2]
    redaction.remember(sent, login.token, login.key)
    return redaction.without_secrets(" ".join(str(text).split()))[:200]


def _cause(error: BaseException) -> str:
    """Returns the first cause in the system's own words; other texts may contain a password."""
    while inner := error.__cause__ or error.__context__:
        error = inner
    if isinstance(error, TimeoutError):
        return f"no answer for {_TIMEOUT_S:g} s"
    return getattr(error, "strerror", None) or type(error).__name__
