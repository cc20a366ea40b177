"""Kaggle source: a dataset's whole archive, through the official client, kept, resumed and checked.

`download_archive` is all that a build needs. The official client does the talking; this module
guards it where it would lose data, wait for ever or show a secret. What is said about the client
below was read in, and tried with, kaggle 2.2.4; tests/test_sources_kaggle.py holds each point
with the real client.

- Importing the client authenticates, may use the network and makes a folder in the user's home.
  So it is imported only where a download begins, with the network and both side effects off.
- Its API calls and its first storage stream have no time-out: here every request has one.
- If a resumed request is refused (an expired storage address, a 503) it writes the error's body
  over the partial file, and a later run resumes on top of that. Here such an answer is an error
  before a byte of it is written, and the next attempt asks Kaggle for a fresh address.
- It raises 429 at once and checks nothing but the archive's size. Here Retry-After is honoured,
  and every member's CRC is checked once and remembered.
- `VERBOSE=1` in the environment makes it print the Authorization header and read the whole
  archive into memory. Here that is off.
"""

import contextlib
import errno
import fcntl
import hashlib
import io
import json
import logging
import math
import os
import re
import shutil
import socket
import ssl
import struct
import sys
import tempfile
import threading
import time
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn
from urllib.parse import urlsplit

import requests
import requests.adapters
import urllib3.exceptions
from tqdm import tqdm

if TYPE_CHECKING:
    from kaggle.api.kaggle_api_extended import KaggleApi

DEFAULT_DATASET = "paultimothymooney/kermany2018"

_LOG = logging.getLogger(__name__)
_READ_BYTES = 1 << 20
# A cut connection loses the chunk that it cut, so small ones bring a bad line further.
_DOWNLOAD_CHUNK_BYTES = 1 << 18
_LONGEST_BACKOFF_S = 60.0
_NAMED_MEMBERS = 5  # Members that an error names before it counts the rest.


class DownloadError(Exception):
    """No checked archive could be had. The message says why and what to do, in full sentences."""


class CredentialsError(DownloadError):
    """Kaggle credentials are missing, unusable or refused: for the user to mend."""


@dataclass(frozen=True, kw_only=True)
class Retries:
    """How long to wait for Kaggle, and how often.

    Attributes:
        timeout_s: Seconds without a byte after which a connection counts as dead.
        max_retries: Attempts in a row that may bring no new byte before it is an error. Attempts
            that bring the file further do not count, so a bad line still ends with the archive.
        backoff_s: Seconds before the first retry; doubled for each further one, 60 at most.
        longest_wait_s: A Retry-After longer than this is an error that says when to come back.
    """

    timeout_s: float = 60.0
    max_retries: int = 5
    backoff_s: float = 1.0
    longest_wait_s: float = 300.0

    def __post_init__(self):
        """Refuses values that make no sense, with a ValueError that names them."""
        if not self.timeout_s > 0:
            raise ValueError(f"timeout_s must be more than 0, got {self.timeout_s}.")
        for name in ("max_retries", "backoff_s", "longest_wait_s"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must be 0 or more, got {getattr(self, name)}.")


@dataclass(frozen=True, kw_only=True)
class Verification:
    """What is remembered of an archive whose every member was read and had the right CRC.

    Attributes:
        dataset: OWNER/NAME that the archive was downloaded as.
        size: Bytes of the archive.
        mtime_ns: Its modification time in nanoseconds since 1970. Size and time together are how
            the archive is known again without reading it.
        sha256: Of the whole archive, 64 hex digits.
        num_members: Members in the zip, folders included.
        member_bytes: Bytes of all members, unpacked.
    """

    dataset: str
    size: int
    mtime_ns: int
    sha256: str
    num_members: int
    member_bytes: int


def download_archive(
    dataset: str,
    download_dir: Path,
    *,
    progress: bool = True,
    retries: Retries | None = None,
) -> Path:
    """Returns a dataset's complete, checked zip archive, after downloading what is missing of it.

    An archive that was checked before is returned at once, without network or credentials; so is,
    after its check, one that was put there by hand. A partial download is resumed, the client's own
    included. The archive is `download_dir/NAME.zip`; what is known of it lies beside it in
    `NAME.zip.verified.json`, and a corrupt one is moved aside to `NAME.zip.corrupt`.

    A second process on the same archive does not wait, which could take hours in silence: it gets
    an error that names the first one's process id.

    Args:
        dataset: OWNER/NAME, as in https://www.kaggle.com/datasets/OWNER/NAME.
        download_dir: Folder for the archive, made where it is missing.
        progress: Whether to draw progress bars on stderr.
        retries: Time-outs and retries; `Retries()` by default.

    Raises:
        CredentialsError: No credentials were found, or Kaggle refused them.
        DownloadError: Anything else that keeps the archive from being there and whole.
    """
    name = _archive_name(dataset)
    archive = Path(download_dir) / name
    if _is_finished(archive) and _is_verified(archive, dataset):
        _LOG.info("Using %s, downloaded and checked before.", archive)
        return archive
    # Before anything is made on disk: without credentials nothing at all is left behind.
    credentials = None if _is_finished(archive) else _require_credentials()
    with _made_folder(archive.parent), _locked(archive):
        if not _is_finished(archive):
            _fetch(dataset, archive, credentials or _require_credentials(), progress, retries)
        if not _is_verified(archive, dataset):
            _remember(archive, verify_archive(archive, dataset=dataset, progress=progress))
    return archive


def fetch_archive(
    dataset: str,
    download_dir: Path,
    *,
    progress: bool = True,
    retries: Retries | None = None,
) -> Path:
    """Downloads or resumes as `download_archive` does, but leaves the members unchecked.

    Args:
        dataset: OWNER/NAME.
        download_dir: Folder for the archive, made where it is missing.
        progress: Whether to draw a progress bar on stderr.
        retries: Time-outs and retries; `Retries()` by default.

    Raises:
        CredentialsError: No credentials were found, or Kaggle refused them.
        DownloadError: The archive could not be downloaded.
    """
    archive = Path(download_dir) / _archive_name(dataset)
    if not _is_finished(archive):
        credentials = _require_credentials()
        with _made_folder(archive.parent), _locked(archive):
            if not _is_finished(archive):
                _fetch(dataset, archive, credentials, progress, retries)
    return archive


def _archive_name(dataset: str) -> str:
    slug = r"[A-Za-z0-9][A-Za-z0-9_-]*"
    if not re.fullmatch(f"{slug}/{slug}", dataset):
        raise DownloadError(
            f"A Kaggle dataset is named OWNER/NAME, such as {DEFAULT_DATASET}; got {dataset!r}.\n"
            "Take both from the dataset's address, https://www.kaggle.com/datasets/OWNER/NAME."
        )
    return dataset.split("/")[1] + ".zip"


def _is_finished(archive: Path) -> bool:
    """Whether all bytes are there: the client keeps its marker beside a file until they are."""
    return archive.is_file() and not _marker(archive).exists()


# --------------------------------------------------------------------------------------------------
# Credentials: every way the client knows, looked up without the client
# --------------------------------------------------------------------------------------------------

_HOW_TO_AUTHENTICATE = """\
Kaggle needs credentials, and they are free: sign in at https://www.kaggle.com, open
https://www.kaggle.com/settings/api and generate a token. Then do one of these:
  export KAGGLE_API_TOKEN=TOKEN        the token itself, or the path of a file that holds it
  save it as ~/.kaggle/access_token    (chmod 600)
  kaggle auth login                    logs in with the browser (OAuth), no token to copy
or, with a legacy API key (a user name and a key):
  export KAGGLE_USERNAME=NAME KAGGLE_KEY=KEY
  save its kaggle.json as ~/.kaggle/kaggle.json    (chmod 600)
To try everything without an account, run with --source synthetic: it needs no credentials."""


@dataclass(frozen=True, kw_only=True)
class Credentials:
    """Where credentials were found, never what they are.

    Attributes:
        found: Places that hold complete credentials, in the client's order of preference.
        problems: Places that were meant to hold some and do not, each with the reason.
    """

    found: tuple[str, ...]
    problems: tuple[str, ...]


def find_credentials(environ: Mapping[str, str] | None = None) -> Credentials:
    """Looks in every place where the official client looks, in its order, without the network.

    The order was read in `KaggleApi.authenticate` and `kagglesdk.get_access_token_from_env`:
    access token (environment, then file), legacy key (environment over kaggle.json), OAuth.

    Args:
        environ: Environment variables; `os.environ` by default.
    """
    environ = os.environ if environ is None else environ
    found: list[str] = []
    problems: list[str] = []
    for look in (_find_token, _find_legacy_key, _find_oauth):
        look(environ, found, problems)
    return Credentials(found=tuple(found), problems=tuple(problems))


def _find_token(environ: Mapping[str, str], found: list[str], problems: list[str]) -> None:
    notebook_file = environ.get("KAGGLE_API_V1_TOKEN")
    in_notebook = "KAGGLE_KERNEL_RUN_TYPE" in environ and "KAGGLE_DATA_PROXY_URL" in environ
    if in_notebook and notebook_file and _read_text(Path(notebook_file)):
        found.append("KAGGLE_API_V1_TOKEN (Kaggle notebook)")
        return
    value = environ.get("KAGGLE_API_TOKEN")
    if value:
        # The client asks whether the value is a file's path, and fails, token in hand, where it is
        # too long to be one.
        try:
            is_path = Path(value).exists()
        except OSError:
            problems.append(
                "KAGGLE_API_TOKEN: longer than a path may be, which the client cannot take. "
                "Save the token as ~/.kaggle/access_token and unset the variable."
            )
            return
        if is_path and not _read_text(Path(value)):
            problems.append("KAGGLE_API_TOKEN: it names a file that is empty or cannot be read.")
        else:
            found.append("KAGGLE_API_TOKEN")
        return
    for name in ("access_token", "access_token.txt"):
        path = _home(environ) / ".kaggle" / name
        if _read_text(path):
            found.append(str(path))
            return
        if path.exists():
            problems.append(f"{path}: it is empty or cannot be read.")


def _find_legacy_key(environ: Mapping[str, str], found: list[str], problems: list[str]) -> None:
    from_environment = {key: environ.get(f"KAGGLE_{key.upper()}") for key in ("username", "key")}
    path = _legacy_folder(environ) / "kaggle.json"
    from_file = _read_json(path)
    if all(from_environment.values()):
        found.append("KAGGLE_USERNAME and KAGGLE_KEY")
    elif all(from_environment[key] or from_file.get(key) for key in from_environment):
        given = [f"KAGGLE_{key.upper()}" for key, value in from_environment.items() if value]
        found.append(" and ".join([*given, str(path)]))
    else:
        missing = [key for key in from_environment if not from_environment[key]]
        if len(missing) == 1:
            problems.append(f"KAGGLE_{missing[0].upper()}: not set, though its partner is.")
        if path.exists():
            problems.append(f'{path}: expected a JSON object with "username" and "key".')


def _find_oauth(environ: Mapping[str, str], found: list[str], problems: list[str]) -> None:
    path = _home(environ) / ".kaggle" / "credentials.json"
    if _read_json(path).get("refresh_token"):
        found.append(f"{path} (kaggle auth login)")
    elif path.exists():
        problems.append(f"{path}: it holds no login. Run `kaggle auth login` again.")


def _require_credentials() -> Credentials:
    credentials = find_credentials()
    if not credentials.found:
        lines = ["No Kaggle credentials were found."]
        if credentials.problems:
            lines = ["No usable Kaggle credentials were found."]
            lines += [f"  {problem}" for problem in credentials.problems]
        raise CredentialsError("\n".join([*lines, _HOW_TO_AUTHENTICATE]))
    return credentials


def _home(environ: Mapping[str, str]) -> Path:
    home = environ.get("HOME")
    return Path(home) if home else Path("~").expanduser()


def _legacy_folder(environ: Mapping[str, str]) -> Path:
    """Where the client looks for kaggle.json; the rule is that of `KaggleApi.config_dir`."""
    if environ.get("KAGGLE_CONFIG_DIR"):
        return Path(environ["KAGGLE_CONFIG_DIR"])
    folder = _home(environ) / ".kaggle"
    if sys.platform.startswith("linux") and not folder.exists():
        base = environ.get("XDG_CONFIG_HOME") or _home(environ) / ".config"
        return Path(base) / "kaggle"
    return folder


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").strip()
    except (OSError, ValueError):
        return ""


def _read_json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(_read_text(path))
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


# --------------------------------------------------------------------------------------------------
# The folder and its lock
# --------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _made_folder(folder: Path) -> Iterator[None]:
    """Makes `folder`, and takes away what it made where the block fails and leaves it empty."""
    made = [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        _raise_disk_error(error, folder)
    try:
        yield
    except BaseException:
        with contextlib.suppress(OSError):  # It holds something by now: a partial download, say.
            for path in made:
                path.rmdir()
        raise


@contextlib.contextmanager
def _locked(archive: Path) -> Iterator[None]:
    """Holds the archive's lock: two clients would write into one file (kaggle-cli issue 516).

    The system drops a flock with its process, so a killed download locks nobody out.
    """
    path = archive.with_name(f".{archive.name}.lock")
    try:
        descriptor = _acquire(path)
    except BlockingIOError:
        holder = _read_text(path)
        raise DownloadError(
            f"{archive} is being downloaded or checked by another process"
            f"{f' (process id {holder})' if holder else ''}.\n"
            "Wait until it has finished, then run the same command again: it will use that archive."
        ) from None
    except OSError as error:
        # A finished archive in a folder that others keep: there is nothing to write, so no lock.
        if error.errno not in (errno.EACCES, errno.EROFS) or not _is_finished(archive):
            _raise_disk_error(error, path)
        yield
        return
    try:
        yield
    finally:
        path.unlink(missing_ok=True)  # While it is still held: see _acquire.
        os.close(descriptor)


def _acquire(path: Path) -> int:
    """Returns a descriptor that holds the lock file's flock, with our process id written to it."""
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # The last holder may have deleted the file between our open and our flock; then this
            # lock is on a file that nobody else will ever open.
            if path.exists() and os.path.samestat(os.fstat(descriptor), path.stat()):
                os.truncate(descriptor, 0)
                os.write(descriptor, str(os.getpid()).encode())
                return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)


# --------------------------------------------------------------------------------------------------
# The download: attempts around the client
# --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class _Problem:
    """Why an attempt failed. `wait_s` is what the server asked for, None where it did not."""

    message: str
    advice: str = ""
    is_transient: bool = False
    wait_s: float | None = None
    error: type[DownloadError] = DownloadError


def _fetch(
    dataset: str,
    archive: Path,
    credentials: Credentials,
    progress: bool,
    retries: Retries | None,
) -> None:
    """Downloads or resumes until all bytes are there; each attempt gets a fresh storage address."""
    retries = retries or Retries()
    # The client gives a file the remote one's time, so a new download of the same size would pass
    # for one that was checked before.
    _verification_path(archive).unlink(missing_ok=True)
    try:
        with (
            _quiet_client(),
            _guarded_requests(retries.timeout_s),
            _download_bar(archive, progress),
        ):
            api = _load_client(retries)
            _attempt_until_done(dataset, archive, api, credentials, retries)
    except BaseException:
        _drop_empty(archive)
        raise
    _marker(archive).unlink(missing_ok=True)


def _attempt_until_done(
    dataset: str, archive: Path, api: "KaggleApi", credentials: Credentials, retries: Retries
) -> None:
    failures = 0
    furthest = _size(archive)
    while True:
        try:
            _attempt(dataset, archive, api, credentials)
            return
        except DownloadError:
            raise
        except Exception as error:
            problem = _diagnose(error, dataset, archive, credentials, retries)
        if _size(archive) > furthest:
            failures, furthest = 0, _size(archive)
        failures += 1
        wait_s = min(retries.backoff_s * 2 ** (failures - 1), _LONGEST_BACKOFF_S)
        if problem.wait_s is not None:
            wait_s = problem.wait_s
        if not problem.is_transient or failures > retries.max_retries:
            tries = f" Tried {failures} times." if failures > 1 else ""
            _raise_problem(problem, tries, archive)
        if wait_s > retries.longest_wait_s:
            asked = f" It asks to wait {wait_s:.0f} s: run the same command again after that."
            _raise_problem(problem, asked, archive)
        _LOG.warning(
            "%s Trying again in %.1f s (retry %d of %d).",
            problem.message.splitlines()[0],
            wait_s,
            failures,
            retries.max_retries,
        )
        time.sleep(wait_s)


def _raise_problem(problem: _Problem, addition: str, archive: Path) -> NoReturn:
    lines = [problem.message + addition, problem.advice, _partial_note(archive)]
    raise problem.error("\n".join(filter(None, lines))) from None


def _attempt(dataset: str, archive: Path, api: "KaggleApi", credentials: Credentials) -> None:
    # Anew in each attempt: an OAuth token can expire in the hours that a download takes.
    try:
        api.authenticate()
    except SystemExit:  # The client's way to say that no credentials worked.
        raise CredentialsError(_refused_text(credentials)) from None
    api.dataset_download_files(dataset, path=str(archive.parent), quiet=True, unzip=False)


def _marker(archive: Path) -> Path:
    """The client's own note on a partial file: the remote object's ETag and size, no secret."""
    return archive.with_name(archive.name + ".kaggle-partial")


def _size(path: Path) -> int:
    return path.stat().st_size if path.is_file() else 0


def _drop_empty(archive: Path) -> None:
    """Removes a file of no bytes and its marker, so that a failed start leaves nothing behind."""
    with contextlib.suppress(OSError):
        if _size(archive) == 0:
            archive.unlink(missing_ok=True)
            _marker(archive).unlink(missing_ok=True)


def _partial_note(archive: Path) -> str:
    size = _size(archive)
    if size == 0:
        return ""
    total = _read_json(_marker(archive)).get("size")
    of_total = f" of {_bytes(total)}" if total else ""
    return f"{_bytes(size)}{of_total} are kept in {archive}: run the same command again to resume."


def _bytes(count: int) -> str:
    for unit, factor in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if count >= factor:
            return f"{count / factor:.1f} {unit}"
    return f"{count} bytes"


@contextlib.contextmanager
def _download_bar(archive: Path, progress: bool) -> Iterator[None]:
    """Draws the file's growth, from a thread that looks at its size.

    The client's own bar cannot be had without its other output, starts anew at each attempt, and
    redraws ten times a second where stderr is a log file.
    """
    if not progress:
        yield
        return
    done = threading.Event()
    with _bar(f"downloading {archive.name}", initial=_size(archive)) as bar:

        def look() -> None:
            size = _size(archive)
            if _is_finished(archive):
                bar.total = size
            else:
                bar.total = _read_json(_marker(archive)).get("size") or bar.total
            bar.update(size - bar.n)

        def watch() -> None:
            while not done.wait(0.2):
                look()

        watcher = threading.Thread(target=watch, daemon=True)
        watcher.start()
        try:
            yield
        finally:
            done.set()
            watcher.join()
            look()


def _bar(description: str, *, total: int | None = None, initial: int = 0) -> tqdm:
    seconds = 0.2 if sys.stderr.isatty() else 30.0  # A log file wants a line now and then.
    return tqdm(
        desc=description,
        total=total,
        initial=initial,
        mininterval=seconds,
        maxinterval=max(10.0, seconds),
        unit="B",
        unit_scale=True,
    )


# --------------------------------------------------------------------------------------------------
# The client, guarded
# --------------------------------------------------------------------------------------------------


class _WrongAnswerError(requests.RequestException):
    """A storage host answered with something that must not be written into the archive."""


def _load_client(retries: Retries) -> "KaggleApi":
    """Imports the official client, without its side effects, and returns an instance.

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
                    timeout=retries.timeout_s,
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
        if not _legacy_folder(os.environ).exists():
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
def _quiet_client() -> Iterator[None]:
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
def _guarded_requests(timeout_s: float) -> Iterator[None]:
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
            raise _WrongAnswerError(
                f"asked for bytes from {asked[1]}, got {content_range!r}",
                request=request,
                response=response,
            )
    # 200 says "the object has changed, here it is from the start", and the client then empties the
    # partial file. But the object was there a moment ago; so anything else came from a third party.
    elif request.headers.get("If-Range") != _validator(response):
        raise _WrongAnswerError(
            "the answer is of another object", request=request, response=response
        )


def _validator(response: requests.Response) -> str | None:
    return response.headers.get("ETag") or response.headers.get("Last-Modified")


def _check_is_archive(response: requests.Response) -> None:
    """Raises on a 200 that is a page: a company's proxy or a hotel's login, say."""
    kind = response.headers.get("Content-Type", "").split(";")[0].strip().lower()
    if kind.startswith("text/") or kind in ("application/json", "application/xml"):
        response.close()
        raise _WrongAnswerError(
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
    marker = _read_json(_marker(archive))
    return marker == {"validator": validator, "size": length} and _size(archive) == length


def _check_free_space(response: requests.Response, archive: Path) -> None:
    """Raises before the first byte where the file system has no room for the missing ones.

    Whether the download resumes or starts anew, the bytes on disk are part of the room.
    """
    missing = (_content_length(response) or 0) - _size(archive)
    free = shutil.disk_usage(archive.parent).free
    if missing > free:
        response.close()
        raise DownloadError(
            f"{archive.parent} has {_bytes(free)} free, but {archive.name} needs {_bytes(missing)} "
            "more.\nFree some space, or choose another folder with --download_dir.\n"
            f"{_partial_note(archive)}".rstrip()
        )


# --------------------------------------------------------------------------------------------------
# What went wrong, in words. No exception's own text is shown: it may hold a signed address.
# --------------------------------------------------------------------------------------------------


def _diagnose(
    error: Exception,
    dataset: str,
    archive: Path,
    credentials: Credentials,
    retries: Retries,
) -> _Problem:
    """Turns whatever the client raised into a message, and says whether it may pass."""
    if isinstance(error, requests.HTTPError) and error.response is not None:
        if error.response.request is not None and error.response.request.method == "GET":
            return _diagnose_storage(error.response)
        return _diagnose_api(error.response, dataset, credentials)
    if isinstance(error, _WrongAnswerError):
        return _Problem(
            message=f"{_host(error)} did not send the archive: {error}.",
            advice="Something between this machine and Kaggle may answer in its place: a proxy, "
            "or a network that wants a login in the browser first.",
            is_transient=True,
        )
    if isinstance(error, requests.RequestException | urllib3.exceptions.HTTPError):
        return _diagnose_connection(error, retries)
    if isinstance(error, OSError):
        _raise_disk_error(error, archive)
    _LOG.debug("The Kaggle client failed with %s.", type(error).__name__)
    return _Problem(
        message=f"The Kaggle client failed on {dataset} with {type(error).__name__}"
        f" ({_redacted(str(error))}).",
        advice="Check its version (`pip show kaggle`; this was made for 2.2.4), and try the "
        f"download with the client alone: kaggle datasets download {dataset}",
    )


def _diagnose_api(response: requests.Response, dataset: str, credentials: Credentials) -> _Problem:
    answer = _json_answer(response)
    code = answer.get("code")
    status = code if isinstance(code, int) and code >= 400 else response.status_code
    said = _redacted(str(answer.get("message") or response.reason or ""))
    address = f"https://www.kaggle.com/datasets/{dataset}"
    if status == 401:
        return _Problem(message=_refused_text(credentials), error=CredentialsError)
    if status == 403:
        return _Problem(
            message=f"Kaggle does not let this account download {dataset} (HTTP 403: {said}).",
            advice=f"Open {address} in a browser, signed in to the same account.\n"
            "If it asks to accept terms or rules, or to verify the account's phone number, do so. "
            "If it does not open, check the name,\nor ask its owner for access: a private dataset "
            "is refused in the same way.",
        )
    if status == 404:
        return _Problem(
            message=f"Kaggle has no dataset {dataset} (HTTP 404: {said}).",
            advice=f"Check the name at {address}; it is OWNER/NAME, as in {DEFAULT_DATASET}.",
        )
    if status == 429:
        return _Problem(
            message="Kaggle has had too many requests from this account or address (HTTP 429).",
            is_transient=True,
            wait_s=_retry_after(response),
        )
    if status >= 500 or status == 408:
        return _Problem(
            message=f"Kaggle's API has a fault of its own (HTTP {status}: {said}).",
            advice="It is likely to pass: run the same command again later.",
            is_transient=True,
            wait_s=_retry_after(response),
        )
    return _Problem(message=f"Kaggle refused the download of {dataset} (HTTP {status}: {said}).")


def _diagnose_storage(response: requests.Response) -> _Problem:
    status = response.status_code
    host = urlsplit(response.url).hostname
    if status == 429 or status >= 500:
        return _Problem(
            message=f"The storage host {host} is busy or has a fault of its own (HTTP {status}).",
            is_transient=True,
            wait_s=_retry_after(response),
        )
    # An address is signed for a limited time; Kaggle gives a fresh one to each attempt.
    return _Problem(
        message=f"The storage host {host} refused the archive's address (HTTP {status}), as it "
        "does when the address has expired.",
        is_transient=True,
    )


def _diagnose_connection(error: Exception, retries: Retries) -> _Problem:
    host = _host(error)
    chain = _chain(error)

    def has(*kinds: type[BaseException]) -> bool:
        return any(isinstance(link, kinds) for link in chain)

    if has(ssl.SSLCertVerificationError):
        return _Problem(
            message=f"The certificate of {host} is not trusted here.",
            advice="If a company's proxy signs its own, name its file in REQUESTS_CA_BUNDLE.",
        )
    if has(requests.exceptions.ProxyError):
        what = "the proxy named in http_proxy, https_proxy or all_proxy could not be used"
    elif has(socket.gaierror, urllib3.exceptions.NameResolutionError):
        what = f"the name {host} could not be resolved (DNS)"
    elif has(ConnectionRefusedError):
        what = f"{host} refused the connection"
    elif has(requests.Timeout, urllib3.exceptions.TimeoutError, TimeoutError):
        what = f"{host} sent nothing for {retries.timeout_s:g} s"
    elif has(urllib3.exceptions.ProtocolError, ConnectionError):
        what = f"the connection to {host} was cut"
    else:
        what = f"the connection to {host} failed ({type(error).__name__})"
    return _Problem(
        message=f"The download was interrupted: {what}.",
        advice="Check the network connection (and the proxy variables, if there is a proxy).",
        is_transient=True,
    )


def _host(error: Exception) -> str:
    request = getattr(error, "request", None)
    host = urlsplit(getattr(request, "url", None) or "").hostname
    return host or "the storage host"  # Only reading an answer's body fails without its request.


def _chain(error: BaseException) -> list[BaseException]:
    """An exception with all that it came from, which requests and urllib3 put in several places."""
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
    """Seconds that the answer asks to wait: a number or a date (RFC 9110, section 10.2.3)."""
    value = response.headers.get("Retry-After", "").strip()
    if value.isdecimal():
        return float(value)
    try:
        until = parsedate_to_datetime(value)
    except ValueError:
        return None
    if until.tzinfo is None:
        until = until.replace(tzinfo=UTC)
    return max(0.0, math.ceil((until - datetime.now(UTC)).total_seconds()))


def _redacted(text: str) -> str:
    """One short line of a foreign text, without credentials, in case a server echoes them."""
    home = _home(os.environ) / ".kaggle"
    texts = [os.environ.get(name, "") for name in ("KAGGLE_API_TOKEN", "KAGGLE_KEY")]
    texts += [_read_text(home / name) for name in ("access_token", "access_token.txt")]
    stored = [_read_json(_legacy_folder(os.environ) / "kaggle.json")]
    stored.append(_read_json(home / "credentials.json"))
    texts += [str(values.get(key) or "") for values in stored for key in _SECRET_KEYS]
    if texts[0] and len(texts[0]) < 255:
        texts.append(_read_text(Path(texts[0])))
    for secret in filter(None, texts):
        text = text.replace(secret, "[hidden]")
    text = re.sub(r"\?\S+", "?[hidden]", " ".join(text.split()))  # The signature of an address.
    return text if len(text) <= 200 else text[:200] + "…"


_SECRET_KEYS = ("key", "refresh_token", "access_token")


def _refused_text(credentials: Credentials) -> str:
    lines = ["Kaggle refused the credentials. They were found in:"]
    lines += [f"  {place}" for place in credentials.found]
    lines += [f"  {problem}" for problem in credentials.problems]
    lines.append(
        "They may be mistyped, expired or revoked; the first of them goes before the rest."
    )
    return "\n".join([*lines, _HOW_TO_AUTHENTICATE])


_FULL_DISK = {
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "the quota on this disk is used up",
    errno.EFBIG: "the file is larger than this file system or a limit of the shell (ulimit -f) "
    "allows",
}


def _raise_disk_error(error: OSError, path: Path) -> NoReturn:
    reason = _FULL_DISK.get(error.errno or 0) or error.strerror or type(error).__name__
    raise DownloadError(
        f"{path} could not be written: {reason}.\n"
        "Free some space or mend its permissions, or choose another folder with --download_dir.\n"
        f"{_partial_note(path)}".rstrip()
    ) from None


# --------------------------------------------------------------------------------------------------
# The check of a finished archive
# --------------------------------------------------------------------------------------------------


def verify_archive(archive: Path, *, dataset: str, progress: bool = True) -> Verification:
    """Reads every member of a zip and compares its CRC; hashes the archive at the same time.

    Streams: memory holds a chunk of one member, and the zip's directory (about 0.7 kB a member).

    A corrupt archive is moved aside to `NAME.zip.corrupt`, over an older one, instead of deleted
    or left: the next run starts a fresh download, 11 GB are not thrown away unasked, and not more
    than one such file is ever there.

    Args:
        archive: The zip file.
        dataset: OWNER/NAME, to be remembered.
        progress: Whether to draw a progress bar on stderr.

    Raises:
        DownloadError: The archive is corrupt, and the message names the members; or the disk
            failed.
    """
    give_up = threading.Event()
    try:
        before = archive.stat()
        with (
            _check_bar(archive, before.st_size, progress) as advance,
            ThreadPoolExecutor(max_workers=1) as pool,
        ):
            # Beside the CRCs, not after them: hashlib and zlib both let other threads run.
            digest = pool.submit(_sha256, archive, advance, give_up)
            try:
                members, corrupt = _check_members(archive, advance)
            except BaseException:
                give_up.set()
                raise
            if corrupt:
                give_up.set()
            sha256 = digest.result()
    except OSError as error:
        raise DownloadError(
            f"{archive} could not be read: {error.strerror}.\nCheck the disk and permissions."
        ) from None
    if corrupt:
        _raise_corrupt(archive, corrupt, len(members))
    return Verification(
        dataset=dataset,
        size=before.st_size,
        mtime_ns=before.st_mtime_ns,
        sha256=sha256,
        num_members=len(members),
        member_bytes=sum(member.file_size for member in members),
    )


def read_verification(archive: Path) -> Verification | None:
    """Returns what is remembered of an archive, or None where it has changed or was never checked.

    Args:
        archive: The zip file; the sidecar `NAME.zip.verified.json` is read beside it.
    """
    try:
        verification = Verification(**_read_json(_verification_path(archive)))
        stat = archive.stat()
    except (TypeError, OSError):
        return None
    is_same = (verification.size, verification.mtime_ns) == (stat.st_size, stat.st_mtime_ns)
    return verification if is_same else None


def _verification_path(archive: Path) -> Path:
    return archive.with_name(archive.name + ".verified.json")


def _is_verified(archive: Path, dataset: str) -> bool:
    verification = read_verification(archive)
    if verification is None:
        return False
    if verification.dataset.lower() != dataset.lower():
        raise DownloadError(
            f"{archive} is the archive of {verification.dataset}, not of {dataset}: the two have "
            "the same NAME.\nChoose another folder with --download_dir."
        )
    return True


def _remember(archive: Path, verification: Verification) -> None:
    path = _verification_path(archive)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.write_text(json.dumps(asdict(verification), indent=1) + "\n", encoding="utf-8")
        temporary.replace(path)
    except OSError as error:  # A folder that others keep: the archive is good all the same.
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        _LOG.warning(
            "%s could not be written (%s), so the next run will check %s again.",
            path,
            error.strerror,
            archive.name,
        )


_Advance = Callable[[float], None]


@contextlib.contextmanager
def _check_bar(archive: Path, size: int, progress: bool) -> Iterator[_Advance]:
    """Gives a function that takes a share of the archive, 1 for all of it, from any thread.

    The archive is read twice at once, for the CRCs and for the hash. Either may be the slower, so
    each counts for half.
    """
    if not progress:
        yield lambda share: None
        return
    lock = threading.Lock()
    with _bar(f"checking {archive.name}", total=size) as bar:

        def advance(share: float) -> None:
            with lock:
                bar.update(min(share * size / 2, size - bar.n))

        yield advance


def _sha256(path: Path, advance: _Advance, give_up: threading.Event) -> str:
    digest = hashlib.sha256()
    size = path.stat().st_size
    with path.open("rb") as file:
        while not give_up.is_set() and (chunk := file.read(_READ_BYTES)):
            digest.update(chunk)
            advance(len(chunk) / size)
    return digest.hexdigest()


def _check_members(archive: Path, advance: _Advance) -> tuple[list[zipfile.ZipInfo], list[str]]:
    """Returns all members, and a line for each that is corrupt (one for a file that is no zip)."""
    try:
        with zipfile.ZipFile(archive) as file:
            members = file.infolist()
            corrupt = _corrupt_members(file, members, advance)
        # zipfile does not compare them, and damage to a length can swallow the entries after it.
        if (promised := _num_members_promised(archive, len(members))) != len(members):
            corrupt.append(f"the directory: {promised} members promised, {len(members)} listed")
        return members, corrupt
    except _NOT_A_ZIP as error:
        return [], [f"the file itself: no readable zip directory ({error})"]


def _corrupt_members(
    file: zipfile.ZipFile, members: list[zipfile.ZipInfo], advance: _Advance
) -> list[str]:
    corrupt = []
    total = sum(member.file_size for member in members)
    for member in members:
        try:
            with file.open(member) as stream:
                while chunk := stream.read(_READ_BYTES):
                    advance(len(chunk) / total)
        except _BAD_MEMBER as error:
            if isinstance(error, OSError) and error.errno is not None:
                raise  # The disk failed, not the archive.
            corrupt.append(f"{member.filename!r}: {error}")
    return corrupt


def _num_members_promised(archive: Path, num_members: int) -> int:
    """Returns how many members a zip's end record counts (APPNOTE.TXT, 4.3.14 and 4.3.16).

    Without the zip64 record the count has 16 bits; some writers let it wrap round instead.
    """
    with archive.open("rb") as file:
        file.seek(max(0, archive.stat().st_size - _LONGEST_ZIP_END))
        end = file.read()
    record = end.rfind(b"PK\x05\x06")
    (count,) = struct.unpack_from("<H", end, record + 10)
    record_64 = end.rfind(b"PK\x06\x06", 0, record)
    if count == 0xFFFF and record_64 >= 0:
        return struct.unpack_from("<Q", end, record_64 + 32)[0]
    return num_members if num_members % (1 << 16) == count else count


# The end record with the longest comment, the zip64 locator and the zip64 end record.
_LONGEST_ZIP_END = 22 + 0xFFFF + 20 + 56

# What zipfile and the decompressors raise on damaged bytes; bz2's is an OSError without a number.
_NOT_A_ZIP = (zipfile.BadZipFile, ValueError, OverflowError, NotImplementedError)
_BAD_MEMBER = (*_NOT_A_ZIP, zlib.error, EOFError, RuntimeError, OSError)


def _raise_corrupt(archive: Path, corrupt: list[str], num_members: int) -> NoReturn:
    aside = archive.with_name(archive.name + ".corrupt")
    try:
        archive.replace(aside)
        whereabouts = (
            f"It was moved to {aside}; delete that to free {_bytes(_size(aside))}.\n"
            "Run the same command again to download a new one."
        )
    except OSError as error:
        whereabouts = (
            f"It could not be moved aside ({error.strerror}): delete it, then run the same command "
            "again to download a new one."
        )
    with contextlib.suppress(OSError):
        _verification_path(archive).unlink(missing_ok=True)
    lines = [f"  {line}" for line in corrupt[:_NAMED_MEMBERS]]
    if len(corrupt) > _NAMED_MEMBERS:
        lines.append(f"  and {len(corrupt) - _NAMED_MEMBERS} more")
    count = f"{len(corrupt)} of its {num_members} members are" if num_members else "it is"
    raise DownloadError(
        "\n".join([f"{archive} has all its bytes, but {count} corrupt:", *lines, whereabouts])
    ) from None
