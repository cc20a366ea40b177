"""Explains the errors of a Kaggle download to the user.

The text of most exceptions is not shown, because it may contain a signed address.
"""

from __future__ import annotations

import contextlib
from typing import Any
from urllib.parse import urlsplit

import requests

from pipelines import errors
from pipelines.sources.kaggle.login import Login, refused
from tfrecord_io import redaction


class WrongAnswerError(requests.RequestException):
    """A host answered with something that must not be written into the archive."""


def explain(error: requests.RequestException, dataset: str, login: Login, timeout_s: float) -> str:
    """Returns the message for an error that another attempt may mend, and raises for any other.

    Args:
        error: the error of an attempt.
        dataset: OWNER/NAME.
        login: the credentials that were used.
        timeout_s: seconds without a byte after which a connection was given up.

    Raises:
        errors.UserError: if Kaggle refused the credentials.
        errors.BuildError: if Kaggle refused the dataset.
    """
    if isinstance(error, requests.HTTPError):
        return _explain_refusal(error.response, dataset, login)
    if isinstance(error, WrongAnswerError):
        return (
            f"{_host(error)} did not send the archive: {error}.\nA proxy, or a network that "
            "requires a login in the browser, may answer in place of Kaggle."
        )
    return (
        f"The download was interrupted: {_interruption(error, timeout_s)}.\n"
        "Check the network connection and the proxy variables. If a company's proxy has its own "
        "certificates, set REQUESTS_CA_BUNDLE to their file."
    )


def _explain_refusal(response: requests.Response, dataset: str, login: Login) -> str:
    host, status = urlsplit(response.url).hostname, response.status_code
    if status in (408, 429) or status >= 500:
        what = "received too many requests" if status == 429 else "has a temporary error"
        wait = response.headers.get("Retry-After")
        asked = f", Retry-After: {wait[:30]}" if wait else ""
        return f"{host} {what} (HTTP {status}{asked}).\nRun the same command again later."
    if response.request.method == "GET":
        return (
            f"The storage host {host} refused the archive's address (HTTP {status}), as it does "
            "when the address has expired."
        )
    if status == 401:
        raise refused(login)
    address = f"https://www.kaggle.com/datasets/{dataset}"
    said = f"HTTP {status}: {_said(response, login)}"
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
    else:
        message = f"Kaggle refused the download of {dataset} ({said})."
    raise errors.BuildError(message) from None


def _said(response: requests.Response, login: Login) -> str:
    """Returns the API's own text as one short line; a server may repeat credentials in it."""
    text: Any = response.reason
    with contextlib.suppress(ValueError, LookupError, TypeError):
        text = response.json()["message"]
    text = " ".join(str(text).split())
    sent = response.request.headers.get("Authorization", "").rpartition(" ")[2]
    redaction.remember(sent, login.token, login.key)
    return redaction.without_secrets(text)[:200]


def _interruption(error: requests.RequestException, timeout_s: float) -> str:
    cause: BaseException = error
    while inner := cause.__cause__ or cause.__context__:
        cause = inner
    if isinstance(error, requests.exceptions.ProxyError):
        return "the proxy named in http_proxy, https_proxy or all_proxy could not be used"
    if isinstance(cause, TimeoutError):
        return f"{_host(error)} sent nothing for {timeout_s:g} s"
    # The system's own words, such as "Connection refused", or "IncompleteRead".
    reason = getattr(cause, "strerror", None) or type(cause).__name__
    return f"the connection to {_host(error)} failed ({reason})"


def _host(error: requests.RequestException) -> str:
    host = urlsplit(error.request.url or "").hostname if error.request else None
    return host or "the storage host"  # An error while reading the body has no request.
