"""Turns the errors of a Kaggle download into messages for the user.

The text of most exceptions is not shown, because it may contain a signed address.
"""

import logging
import socket
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import requests
import urllib3.exceptions
from urllib3.util import Retry

from pipelines import errors
from pipelines.sources.downloads import raise_disk_error
from pipelines.sources.kaggle.credentials import Credentials, redacted, refused_text
from pipelines.sources.kaggle.transfer import WrongAnswerError, partial_note

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Problem:
    """Why an attempt failed, and whether to retry.

    Attributes:
        message: what happened.
        advice: what the user can do; may be empty.
        is_transient: whether a retry may succeed.
        wait_s: seconds that the server asks to wait, or None if it does not ask.
        error: the class of error to raise.
    """

    message: str
    advice: str = ""
    is_transient: bool = False
    wait_s: float | None = None
    error: type[errors.UserError | errors.BuildError] = errors.BuildError


def diagnose(
    error: Exception,
    dataset: str,
    archive: Path,
    credentials: Credentials,
    timeout_s: float,
) -> Problem:
    """Returns the message for an error of an attempt, and whether a retry may succeed.

    Args:
        error: the error.
        dataset: OWNER/NAME.
        archive: the file being downloaded.
        credentials: where the credentials are.
        timeout_s: seconds without a byte after which a connection was given up.

    Raises:
        errors.BuildError: if the disk failed.
    """
    if isinstance(error, requests.HTTPError) and error.response is not None:
        if error.response.request is not None and error.response.request.method == "GET":
            return _diagnose_storage(error.response)
        return _diagnose_api(error.response, dataset, credentials)
    if isinstance(error, WrongAnswerError):
        return Problem(
            message=f"{_host(error)} did not send the archive: {error}.",
            advice="A proxy, or a network that requires a login in the browser, may answer in "
            "place of Kaggle.",
            is_transient=True,
        )
    if isinstance(error, requests.RequestException | urllib3.exceptions.HTTPError):
        return _diagnose_connection(error, timeout_s)
    if isinstance(error, OSError):
        raise_disk_error(error, archive, partial_note(archive))
    _LOG.debug("The Kaggle client failed with %s.", type(error).__name__)
    return Problem(
        message=f"The Kaggle client failed on {dataset} with {type(error).__name__}"
        f" ({redacted(str(error))}).",
        advice="Check its version (`pip show kaggle`; tested with 2.2.4), and try the download "
        f"with the client alone: kaggle datasets download {dataset}",
    )


def _diagnose_api(response: requests.Response, dataset: str, credentials: Credentials) -> Problem:
    answer = _json_answer(response)
    code = answer.get("code")
    status = code if isinstance(code, int) and code >= 400 else response.status_code
    said = redacted(str(answer.get("message") or response.reason or ""))
    address = f"https://www.kaggle.com/datasets/{dataset}"
    if status == 401:
        return Problem(message=refused_text(credentials), error=errors.UserError)
    if status == 403:
        return Problem(
            message=f"Kaggle does not let this account download {dataset} (HTTP 403: {said}).",
            advice=f"Open {address} in a browser, signed in to the same account.\n"
            "If the page asks you to accept terms or rules, or to verify your phone number, do so. "
            "If it does not open, check the name,\nor ask the owner for access: a private dataset "
            "is refused in the same way.",
        )
    if status == 404:
        return Problem(
            message=f"Kaggle has no dataset {dataset} (HTTP 404: {said}).",
            advice=f"Check the name at {address}; it is OWNER/NAME.",
        )
    if status == 429:
        return Problem(
            message="Kaggle received too many requests from this account or address (HTTP 429).",
            is_transient=True,
            wait_s=_retry_after(response),
        )
    if status >= 500 or status == 408:
        return Problem(
            message=f"Kaggle's API has an internal error (HTTP {status}: {said}).",
            advice="This is probably temporary; run the same command again later.",
            is_transient=True,
            wait_s=_retry_after(response),
        )
    return Problem(message=f"Kaggle refused the download of {dataset} (HTTP {status}: {said}).")


def _diagnose_storage(response: requests.Response) -> Problem:
    status = response.status_code
    host = urlsplit(response.url).hostname
    if status == 429 or status >= 500:
        return Problem(
            message=f"The storage host {host} is busy or has an internal error (HTTP {status}).",
            is_transient=True,
            wait_s=_retry_after(response),
        )
    # An address is signed for a limited time; Kaggle gives each attempt a new one.
    return Problem(
        message=f"The storage host {host} refused the archive's address (HTTP {status}), as it "
        "does when the address has expired.",
        is_transient=True,
    )


def _diagnose_connection(error: Exception, timeout_s: float) -> Problem:
    host = _host(error)
    chain = _chain(error)

    def has(*kinds: type[BaseException]) -> bool:
        return any(isinstance(link, kinds) for link in chain)

    if has(ssl.SSLCertVerificationError):
        return Problem(
            message=f"The certificate of {host} is not trusted on this machine.",
            advice="If a company's proxy uses its own certificates, set REQUESTS_CA_BUNDLE to "
            "their file.",
        )
    if has(requests.exceptions.ProxyError):
        what = "the proxy named in http_proxy, https_proxy or all_proxy could not be used"
    elif has(socket.gaierror, urllib3.exceptions.NameResolutionError):
        what = f"the name {host} could not be resolved (DNS)"
    elif has(ConnectionRefusedError):
        what = f"{host} refused the connection"
    elif has(requests.Timeout, urllib3.exceptions.TimeoutError, TimeoutError):
        what = f"{host} sent nothing for {timeout_s:g} s"
    elif has(urllib3.exceptions.ProtocolError, ConnectionError):
        what = f"the connection to {host} broke"
    else:
        what = f"the connection to {host} failed ({type(error).__name__})"
    return Problem(
        message=f"The download was interrupted: {what}.",
        advice="Check the network connection (and the proxy variables, if there is a proxy).",
        is_transient=True,
    )


def _host(error: Exception) -> str:
    request = getattr(error, "request", None)
    host = urlsplit(getattr(request, "url", None) or "").hostname
    return host or "the storage host"  # An error while reading the body has no request.


def _chain(error: BaseException) -> list[BaseException]:
    """Returns an exception and all its causes; requests and urllib3 keep them in several places."""
    seen: list[BaseException] = []
    waiting: list[object] = [error]
    while waiting:
        link = waiting.pop()
        if isinstance(link, BaseException) and link not in seen:
            seen.append(link)
            waiting += [link.__cause__, link.__context__, getattr(link, "reason", None), *link.args]
    return seen


def _json_answer(response: requests.Response) -> dict[str, Any]:
    try:
        answer = response.json()
    except (ValueError, requests.RequestException):
        return {}
    return answer if isinstance(answer, dict) else {}


def _retry_after(response: requests.Response) -> float | None:
    """Returns the seconds that an answer asks to wait, given there as a number or a date.

    Source: RFC 9110, section 10.2.3.
    """
    try:
        return Retry().get_retry_after(response)
    except urllib3.exceptions.InvalidHeader:
        return None
