"""The official Kaggle client, guarded where it would lose data, wait for ever or show a secret."""

import contextlib
import io
import logging
import os
import re
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import requests
import requests.adapters

from pipelines.sources.downloads import (
    DownloadError,
    byte_text,
    file_size,
    marker_path,
    partial_note,
    read_json,
)
from pipelines.sources.kaggle.credentials import legacy_folder

if TYPE_CHECKING:
    from kaggle.api.kaggle_api_extended import KaggleApi

_LOG = logging.getLogger(__name__)
# A cut connection loses the chunk that it cut, so small ones bring a bad line further.
_DOWNLOAD_CHUNK_BYTES = 1 << 18


class WrongAnswerError(requests.RequestException):
    """A storage host answered with something that must not be written into the archive."""


def load_client(timeout_s: float) -> "KaggleApi":
    """Imports the official client, without its side effects, and returns an instance.

    Args:
        timeout_s: seconds without a byte after which a connection counts as dead.

    Raises:
        DownloadError: The package is missing or cannot be imported.
    """
    try:
        with _clean_import(), _replaced_send(_refuse_to_send):
            from kaggle.api.kaggle_api_extended import KaggleApi
    except ImportError as error:
        raise DownloadError(
            f"The official Kaggle client could not be imported ({error}).\n"
            "Install it with: pip install kaggle six"
        ) from None

    class GuardedKaggleApi(KaggleApi):
        """The official client with its retries off (ours get a fresh address) and checks on."""

        # Without --verbose, which prints the Authorization header and reads the archive's bytes
        # as text; another importer of the client may have left it there.
        args = [arg for arg in KaggleApi.args if arg != "--verbose"]  # noqa: RUF012

        def download_needed(
            self, response: requests.Response, outfile: str, quiet: bool = True
        ) -> bool:
            _check_is_archive(response)
            _check_free_space(response, Path(outfile))
            return not _is_whole(response, Path(outfile))

        def download_file(
            self,
            response: requests.Response,
            outfile: str,
            http_client: object,
            quiet: bool = True,
            resume: bool = False,
        ) -> None:
            with response:
                super().download_file(
                    response,
                    outfile,
                    http_client,
                    quiet,
                    resume,
                    chunk_size=_DOWNLOAD_CHUNK_BYTES,
                    max_retries=0,
                    timeout=timeout_s,
                )

    return GuardedKaggleApi()


@contextlib.contextmanager
def _clean_import() -> Iterator[None]:
    """Environment for the client's import: not verbose, and with a settings folder that exists.

    The import makes the settings folder if it is missing, and `VERBOSE` sets the root logger to
    DEBUG. A missing folder holds no kaggle.json, so an empty stand-in changes nothing else.
    """
    changed = ("VERBOSE", "VERBOSE_OUTPUT", "KAGGLE_CONFIG_DIR")
    before = {name: os.environ.get(name) for name in changed}
    with tempfile.TemporaryDirectory() as empty:
        os.environ.pop("VERBOSE", None)
        os.environ.pop("VERBOSE_OUTPUT", None)
        if not legacy_folder(os.environ).exists():
            os.environ["KAGGLE_CONFIG_DIR"] = empty
        try:
            yield
        finally:
            for name, value in before.items():
                if value is None:
                    os.environ.pop(name, None)
                else:
                    os.environ[name] = value


@contextlib.contextmanager
def quiet_client() -> Iterator[None]:
    """Keeps the client's prints, and the addresses that urllib3 logs at DEBUG, to ourselves.

    A storage address is signed: whoever has it can download with it.
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
        # Readable by others, outdated client: worth a user's while, and free of secrets.
        for line in dict.fromkeys(output.getvalue().splitlines()):
            if line.startswith("Warning: "):
                _LOG.warning("The Kaggle client says: %s", line.removeprefix("Warning: "))


_Send = Callable[..., requests.Response]


@contextlib.contextmanager
def _replaced_send(replacement: Callable[..., requests.Response]) -> Iterator[None]:
    """Sends this thread's HTTP requests through `replacement(send, request, **options)`.

    The client makes sessions of its own in several places, so the adapter, through which all of
    them go, is the one place to stand.
    """
    adapter_class = requests.adapters.HTTPAdapter
    original = adapter_class.send
    thread = threading.get_ident()

    def send(
        adapter: requests.adapters.HTTPAdapter, request: requests.PreparedRequest, **options: Any
    ) -> requests.Response:
        if threading.get_ident() != thread:
            return original(adapter, request, **options)
        return replacement(lambda *a, **o: original(adapter, *a, **o), request, **options)

    adapter_class.send = send
    try:
        yield
    finally:
        adapter_class.send = original


def _refuse_to_send(
    send: _Send, request: requests.PreparedRequest, **options: Any
) -> requests.Response:
    raise requests.ConnectionError("the client's import needs no network")


@contextlib.contextmanager
def guarded_requests(timeout_s: float) -> Iterator[None]:
    """Gives every request a time-out, and lets no refusal through as if it were the file."""

    def guarded(
        send: _Send, request: requests.PreparedRequest, **options: Any
    ) -> requests.Response:
        options["timeout"] = options.get("timeout") or timeout_s
        response = send(request, **options)
        # POST goes to the API, whose refusals the client reads itself; GET goes to the storage.
        if request.method == "GET" and not response.is_redirect:
            try:
                _check_storage_answer(request, response)
            except requests.RequestException:
                response.close()
                raise
        return response

    with _replaced_send(guarded):
        yield


def _check_storage_answer(request: requests.PreparedRequest, response: requests.Response) -> None:
    """Raises where the client would write a body that is no part of the object it asked for."""
    if response.status_code >= 400:
        raise requests.HTTPError("refused", request=request, response=response)
    asked = re.fullmatch(r"bytes=(\d+)-", request.headers.get("Range", ""))
    if asked is None:
        return
    if response.status_code == 206:
        content_range = response.headers.get("Content-Range", "")
        if not re.match(rf"bytes {asked[1]}-", content_range):
            raise WrongAnswerError(
                f"asked for bytes from {asked[1]}, got {content_range!r}",
                request=request,
                response=response,
            )
    # 200 says "the object has changed, here it is from the start", and the client then empties the
    # partial file. But the object was there a moment ago; so anything else came from a third party.
    elif request.headers.get("If-Range") != _validator(response):
        raise WrongAnswerError(
            "the answer is of another object", request=request, response=response
        )


def _validator(response: requests.Response) -> str | None:
    return response.headers.get("ETag") or response.headers.get("Last-Modified")


def _check_is_archive(response: requests.Response) -> None:
    """Raises on a 200 that is a page: a company's proxy or a hotel's login, say."""
    kind = response.headers.get("Content-Type", "").split(";")[0].strip().lower()
    if kind.startswith("text/") or kind in ("application/json", "application/xml"):
        response.close()
        raise WrongAnswerError(
            f"expected a zip archive, got {kind}", request=response.request, response=response
        )


def _content_length(response: requests.Response) -> int | None:
    length = response.headers.get("Content-Length", "")
    return int(length) if length.isdecimal() else None


def _is_whole(response: requests.Response, archive: Path) -> bool:
    """Whether all bytes of this very object are on disk, and only the marker was left to clear."""
    length, validator = _content_length(response), _validator(response)
    if None in (length, validator):
        return False
    marker = read_json(marker_path(archive))
    return marker == {"validator": validator, "size": length} and file_size(archive) == length


def _check_free_space(response: requests.Response, archive: Path) -> None:
    """Raises before the first byte where the file system has no room for the missing ones.

    Whether the download resumes or starts anew, the bytes on disk are part of the room.
    """
    missing = (_content_length(response) or 0) - file_size(archive)
    free = shutil.disk_usage(archive.parent).free
    if missing > free:
        response.close()
        raise DownloadError(
            f"{archive.parent} has {byte_text(free)} free, but {archive.name} needs "
            f"{byte_text(missing)} more.\n"
            "Free some space, or choose another folder with --download_dir.\n"
            f"{partial_note(archive)}".rstrip()
        )
