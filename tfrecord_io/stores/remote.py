"""Files in buckets by URL; obstore reads, retries and uploads, ours are versions, lengths, errors.

The threads of obstore do not survive a fork, so each process opens a store when it first uses it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import functools
import hashlib
import io
import logging
import os
import re
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import PurePath
from typing import IO, Any, TypeVar

import obstore
from obstore import exceptions
from obstore import store as obstores

from tfrecord_io.terminal.address import is_remote
from tfrecord_io.terminal.errors import StoreError, UserError

_log = logging.getLogger(__name__)

Result = TypeVar("Result")

#: Number of reads that one process makes at the same time.
NUM_CONNECTIONS = 10

#: Seconds that a server may be silent. A request is repeated until so many attempts have failed, or
#: for so many seconds.
SILENT_SECONDS, NUM_ATTEMPTS, RETRY_SECONDS = 60, 8, 120

# A larger file is uploaded in parts of this size, and buffered on the disk instead of in memory.
_PART_BYTES = 8 * 1024 * 1024

_opened_by = 0


class RangeFile(io.RawIOBase):
    """A seekable file of `size` bytes from `start` on; only the bytes that are read are fetched.

    `read_at` is given the place and number of bytes that exist; a read raises what it raises.
    """

    #: Libraries ask a buffered file for its name; this one has none.
    name = ""

    def __init__(
        self, read_at: Callable[[int, int], bytes | memoryview], size: int, start: int = 0
    ) -> None:
        self._read_at, self._size, self._start, self._position = read_at, size, start, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        if base + offset < 0:
            raise OSError(f"cannot seek to {base + offset}")
        self._position = base + offset
        return self._position

    def readinto(self, buffer: Any) -> int:
        length = min(len(buffer), max(self._size - self._position, 0))
        if length:
            buffer[:length] = self._read_at(self._start + self._position, length)
        self._position += length
        return length

    def readall(self) -> bytes:
        # In one request; the base class makes one for each few kilobytes.
        return self.read(max(self._size - self._position, 0)) or b""


@dataclasses.dataclass(frozen=True)
class StoredFile:
    """A file as its store or disk describes it, with its size in bytes.

    `mark` is the ETag of its version; of a local file, whose `url` is its path, it is empty or the
    time of its last change.
    """

    url: str
    size: int
    mark: str = ""

    @classmethod
    def of(cls, url: str, meta: Any) -> StoredFile:
        """Returns a file for the metadata that obstore gives of an object."""
        # In a listing, Azure gives the ETag without quotes; elsewhere it has quotes.
        return cls(url, meta["size"], (meta["e_tag"] or "").strip('"'))

    @property
    def version(self) -> int:
        """The mark as an integer in 0..2**63-1."""
        return int.from_bytes(hashlib.blake2b(self.mark.encode(), digest_size=8).digest()) >> 1

    def read(self, start: int, length: int) -> bytes | memoryview:
        """Returns bytes of this version of the file, see the function `read`."""
        return read(self.url, start, length, self.mark)

    def open(self) -> RangeFile:
        """Opens the file; a read of it raises what `read` raises."""
        return RangeFile(self.read, self.size)


def patiently(read: Callable[[], Result], closed: threading.Event) -> Result:
    """Returns the result of a function, which is called again after a `StoreError`.

    Raises:
        StoreError: if all attempts fail, or one when `closed` is set, or at once if another attempt
            would not help.
    """
    deadline = time.monotonic() + RETRY_SECONDS
    for attempt in range(1, NUM_ATTEMPTS):
        try:
            return read()
        except StoreError as error:
            if error.cause or closed.is_set() or time.monotonic() > deadline:
                raise
            _log.warning("%s; trying again (%d of %d)", error, attempt, NUM_ATTEMPTS - 1)
            closed.wait(0.05 * 2**attempt)
    return read()


def describe(url: str) -> StoredFile:
    """Returns the size and version of a file.

    Raises:
        FileNotFoundError: if the file does not exist.
        StoreError: if the store does not answer, or refuses.
    """
    store, path = _open(url)
    with _clear_errors(url):
        return StoredFile.of(url, obstore.head(store, path))


def read(url: str, start: int, length: int, mark: str = "") -> bytes | memoryview:
    """Returns bytes of a file by its URL or path; fewer than `length` at its end.

    On a store, the first byte must exist. `mark` is that of the wanted version; empty for any.

    Raises:
        FileNotFoundError: if the file does not exist, and no version of it was asked for.
        StoreError: if the file has changed or was removed, or the store does not answer.
    """
    if not is_remote(url):
        with open(url, "rb") as file:  # noqa: PTH123 - the path is a string here
            file.seek(start)
            return file.read(length)
    options: obstore.GetOptions = {"range": (start, start + length)}
    if mark:
        options["if_match"] = f'"{mark}"'
    store, path = _open(url)
    with _clear_errors(url, mark):
        answer = obstore.get(store, path, options=options)
        content = memoryview(answer.bytes())
    if len(content) != (expected := min(length, answer.meta["size"] - start)):
        raise StoreError(
            f"cannot read {url}: the server sent {len(content):,} bytes instead of {expected:,}. "
            "Run the same command again to resume"
        )
    return content


def read_version(
    url: str, size: int | None = None, version: int | None = None
) -> tuple[bytes, Any]:
    """Returns a whole file, of this size and `version` or of any, and its version for `replace`.

    Raises what `read` raises.
    """
    store, path = _open(url)
    with _clear_errors(url):
        answer = obstore.get(store, path)
        file = StoredFile.of(url, answer.meta)
        # Before the content is fetched: another version may be large.
        if size not in (None, file.size) or version not in (None, file.version):
            raise _changed(url)
        return bytes(answer.bytes()), answer.meta


@contextlib.contextmanager
def create(url: str) -> Iterator[IO[bytes]]:
    """Opens a file for writing, which is uploaded when the block ends, unless the block fails.

    The object appears only when it is complete. Raises StoreError if the store refuses it.
    """
    with tempfile.SpooledTemporaryFile(_PART_BYTES) as spool:
        yield spool
        spool.seek(0)
        store, path = _open(url)
        with _clear_errors(url):
            obstore.put(store, path, spool, chunk_size=_PART_BYTES, max_concurrency=4)


def replace(url: str, content: bytes, seen: Any) -> Any:
    """Writes a file in place of the version that was seen, None: of none; returns its version.

    Raises a StoreError, whose cause is `changed` if another version is there.
    """
    store, path = _open(url)
    tags = ("e_tag", "version")  # the second one is Google Cloud's generation
    mode: Any = {tag: seen[tag] for tag in tags if seen[tag]} if seen else "create"
    try:
        with _clear_errors(url):
            return obstore.put(store, path, content, mode=mode, use_multipart=False)
    except (StoreError, FileNotFoundError) as error:
        if isinstance(error, StoreError) and error.cause != "changed":
            raise
        # The answer to an earlier attempt may have been lost.
        with contextlib.suppress(FileNotFoundError):
            found, version = read_version(url)
            if found == content:
                return version
        raise _changed(url) from None


def list_files(folder: str, *, recursive: bool) -> list[StoredFile]:
    """Returns the files of a folder, with those of its subfolders if `recursive`.

    Empty objects with which some tools represent folders are left out. Raises StoreError if the
    store does not answer, or an object has a name that no file can have.
    """
    store, path = _open(folder)
    root, prefix = folder[: len(folder) - len(path)].rstrip("/"), path.strip("/")
    with _clear_errors(folder):
        if recursive:
            metas = obstore.list(store, prefix).collect()
        else:
            metas = obstore.list_with_delimiter(store, prefix)["objects"]
    folders = {prefix}
    if not all(meta["size"] for meta in metas):
        folders.update(str(part) for meta in metas for part in PurePath(meta["path"]).parents)
    return [
        StoredFile.of(f"{root}/{meta['path']}", meta)
        for meta in metas
        if meta["size"] or meta["path"] not in folders
    ]


def copy(url: str, to: str) -> None:
    """Copies a file to a URL of the same store, which does it by itself.

    Raises a StoreError if it refuses, or has not copied all of it, as Azure may while it works.
    """
    store, path = _open(url)
    with _clear_errors(url):
        obstore.copy(store, path, _open(to)[1])
    if describe(to).size != describe(url).size:
        raise StoreError(f"{url} was not copied whole to {to}; run the same command again")


def delete(url: str) -> None:
    """Deletes a file, if there is one. Raises StoreError if the store refuses."""
    store, path = _open(url)
    with contextlib.suppress(FileNotFoundError), _clear_errors(url):
        obstore.delete(store, path)


def _open(url: str) -> tuple[Any, str]:
    """Returns a URL's store, and the path within it."""
    if open_store.cache_info().currsize and _opened_by != os.getpid():
        raise RuntimeError("open stores after the fork; one that was opened before it hangs")
    scheme, _, rest = url.partition("://")
    bucket, _, path = rest.partition("/")
    return open_store(f"{scheme}://{bucket}"), path


@functools.cache
def open_store(root: str) -> Any:
    """Opens the store of a URL's scheme and bucket, once in a process."""
    global _opened_by
    _opened_by = os.getpid()
    client_options: Any = {
        "allow_http": True,  # for an endpoint that the user gave as http://
        "connect_timeout": f"{min(SILENT_SECONDS, 10)}s",
        "read_timeout": f"{SILENT_SECONDS}s",
        "timeout": "24h",  # for a whole answer, such as a large file over a slow line
    }
    limit = datetime.timedelta(seconds=RETRY_SECONDS)
    try:
        return obstores.from_url(
            root,
            client_options=client_options,
            retry_config={"max_retries": NUM_ATTEMPTS - 1, "retry_timeout": limit},
            credential_provider=_credentials(root.partition("://")[0]),
        )
    except Exception as error:  # of obstore, or of boto3 for a profile that does not exist
        raise UserError(f"cannot use {root}: {_reason(error)}") from None


def _credentials(scheme: str) -> Any:
    """Returns what provides credentials that obstore does not find itself; None if nothing does.

    boto3 reads the files of the AWS tools, and google-auth all kinds of Google's.
    """
    if scheme == "s3" and not os.environ.keys() & {"AWS_ACCESS_KEY_ID", "AWS_SKIP_SIGNATURE"}:
        with contextlib.suppress(ImportError, ValueError):  # not installed, or without credentials
            import boto3
            from obstore.auth.boto3 import Boto3CredentialProvider

            return Boto3CredentialProvider(boto3.Session(region_name=os.environ.get("AWS_REGION")))
    if scheme == "gs" and "GOOGLE_BEARER_TOKEN" not in os.environ:
        with contextlib.suppress(ImportError):
            import google.auth
            from google.auth.exceptions import DefaultCredentialsError
            from obstore.auth.google import GoogleCredentialProvider

            scope = "https://www.googleapis.com/auth/devstorage.read_write"
            with contextlib.suppress(DefaultCredentialsError):
                return GoogleCredentialProvider(google.auth.default([scope])[0])
    return None


def _changed(url: str) -> StoreError:
    return StoreError(
        f"{url} changed since it was first read; start again (a build with --overwrite)", "changed"
    )


@contextlib.contextmanager
def _clear_errors(url: str, mark: str = "") -> Iterator[None]:
    """Raises the errors of a store anew, with the URL; `mark` is that of a file seen before."""
    try:
        yield
    except FileNotFoundError as error:
        if re.search("NoSuchBucket|ContainerNotFound", str(error)):
            raise StoreError(f"cannot use {url}: {_reason(error)}", "denied") from None
        if mark:
            raise StoreError(
                f"{url} is missing, though it was there before; put it back, and start again"
            ) from None
        raise FileNotFoundError(url) from None
    except (exceptions.PreconditionError, exceptions.AlreadyExistsError):
        raise _changed(url) from None
    except (exceptions.BaseError, ValueError) as error:
        refusals = (exceptions.PermissionDeniedError, exceptions.UnauthenticatedError)
        is_denied = isinstance(error, refusals) or "no credentials were found" in _reason(error)
        message = f"cannot use {url}: {_reason(error)}"
        raise StoreError(message, "denied" if is_denied else "") from None


def _reason(error: Exception) -> str:
    """Returns the message of a store's error in one line, without the query of its URL."""
    text = re.sub("<[^>]*>", " ", str(error).partition("\n\nDebug source")[0])
    if "169.254.169.254" in text:
        text = (
            "no credentials were found, and this machine has no role in the cloud (the files of "
            f"the AWS tools need pip install '.[aws]' in the clone): {text}"
        )
    return re.sub(r"(https?://[^\s?]*)\?\S*", r"\1", " ".join(text.split()))
