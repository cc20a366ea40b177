"""Files on object stores and web servers, by URL: exact ranges, listings, uploads.

Every store is reached through one library, obstore, which is Rust's object_store. Its threads do
not survive a fork, so a store is opened by the process that uses it, when it is first used.

Names of buckets and files are taken word for word: `*` and `[` stand for themselves.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import datetime
import hashlib
import io
import itertools
import os
import re
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, Any
from urllib.parse import urlsplit, urlunsplit

import obstore
from obstore import exceptions
from obstore import store as obstores

from pipelines import errors
from pipelines.stores import credentials

#: Reads that may wait for the network at the same time, in one process.
NUM_CONNECTIONS = 10

#: Seconds that a server may be silent, and after which a request that failed is not tried again.
#: Together they bound how long a server that does not answer holds up a build.
SILENT_SECONDS = 60
RETRY_SECONDS = 120

# For a whole answer, such as the directory of a zip of millions of images.
_ANSWER_SECONDS = 3600

# A larger file is uploaded in parts of this size; up to here a new file waits in memory.
_PART_BYTES = 8 * 1024 * 1024
_NUM_PARTS_AT_ONCE = 4

_WEB = ("http", "https")
_KINDS = {
    "s3": obstores.S3Store,
    "gs": obstores.GCSStore,
    "az": obstores.AzureStore,
    "http": obstores.HTTPStore,
    "https": obstores.HTTPStore,
}

_open_stores: dict[str, Any] = {}
_opened_by = 0
_opening = threading.Lock()


@dataclasses.dataclass(frozen=True)
class RemoteFile:
    """A file as its store describes it.

    Attributes:
        url: its address.
        size: its bytes.
        mark: differs for each version of the file: its ETag, or the time of its last change where
            a web server gives no ETag.
    """

    url: str
    size: int
    mark: str

    @property
    def version(self) -> int:
        """The mark as a number in 0..2**63-1, for a column of integers."""
        return int.from_bytes(hashlib.blake2b(self.mark.encode(), digest_size=8).digest()) >> 1


def is_remote(path: str) -> bool:
    """Tells whether a path is a URL such as gs://bucket/folder."""
    return "://" in path


def shown(url: str) -> str:
    """Returns a URL as it may be shown: without a password or a signature."""
    if url.partition("://")[0] not in _WEB:
        return url
    parts = urlsplit(url)
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


def use_flags(beam_args: Sequence[str]) -> tuple[str, ...]:
    """Uses what Beam's flags say about stores; see `credentials.take_flags`.

    Returns:
        the flags without those that hold a secret.
    """
    rest = credentials.take_flags(beam_args)
    forget_stores()
    return rest


def forget_stores() -> None:
    """Has every store opened anew when it is next used, with the settings of that time."""
    with _opening:
        _open_stores.clear()


def describe(url: str) -> RemoteFile:
    """Looks a file up.

    Raises:
        FileNotFoundError: if there is no such file.
        errors.UserError: if the URL names no known kind of store.
        errors.BuildError: if the store does not answer, or refuses.
    """
    store, path = _open(url)
    with _clear_errors(url):
        if url.partition("://")[0] in _WEB:
            # Not HEAD: the signature of a URL is good for GET alone. And this shows at once
            # whether the server gives ranges.
            found = obstore.get(store, path, options={"range": (0, 1)})
            found.bytes()
            meta = found.meta
        else:
            meta = obstore.head(store, path)
    return RemoteFile(url, meta["size"], _mark(meta))


def read(url: str, start: int, length: int, mark: str = "") -> bytes:
    """Returns `length` bytes of a file from `start`, fewer where the file ends.

    Args:
        url: the file.
        start: the first byte; the file has it.
        length: number of bytes, at least one.
        mark: of the version that is wanted; empty if any will do.

    Raises:
        FileNotFoundError: if there is no such file.
        errors.BuildError: if the file has changed, or the store does not answer.
    """
    options: dict[str, Any] = {"range": (start, start + length)}
    if mark and not mark.startswith(("W/", "time ")):  # Neither can be a condition.
        options["if_match"] = f'"{mark}"'
    store, path = _open(url)
    with _clear_errors(url):
        found = obstore.get(store, path, options=options)
        # A web server may ignore the condition.
        if mark and mark != _mark(found.meta):
            raise _changed(url)
        return bytes(found.bytes())


def read_file(url: str, size: int | None = None, version: int | None = None) -> bytes:
    """Returns a whole file.

    Args:
        url: the file.
        size: its bytes, if it must have so many.
        version: `RemoteFile.version` of the version that is wanted, if not any will do.

    Raises:
        FileNotFoundError: if there is no such file.
        errors.BuildError: if the file has changed, or the store does not answer.
    """
    store, path = _open(url)
    with _clear_errors(url):
        found = obstore.get(store, path)
        is_now = RemoteFile(url, found.meta["size"], _mark(found.meta))
        if size not in (None, is_now.size) or version not in (None, is_now.version):
            raise _changed(url)
        return bytes(found.bytes())


def write(url: str, source: IO[bytes], advance: Callable[[int], object] | None = None) -> None:
    """Copies an open file, from where it stands, to a URL, where it appears whole or not at all.

    Args:
        url: where to.
        source: the file.
        advance: is called with the number of bytes of each piece.

    Raises:
        errors.UserError: for a web server, which takes no files.
        errors.BuildError: if the store does not take it.
    """
    store, path = _open(url, web=False)

    def read_part() -> bytes:
        part = source.read(_PART_BYTES)
        if advance is not None:
            advance(len(part))
        return part

    first, second = read_part(), read_part()
    parts = itertools.chain((first, second), iter(read_part, b""))
    try:
        with _clear_errors(url):
            if second:
                obstore.put(
                    store, path, parts, chunk_size=_PART_BYTES, max_concurrency=_NUM_PARTS_AT_ONCE
                )
            else:
                obstore.put(store, path, first, use_multipart=False)
    except FileNotFoundError as error:
        raise errors.BuildError(f"cannot write {url}: there is no such bucket") from error


@contextlib.contextmanager
def create(url: str) -> Iterator[IO[bytes]]:
    """Opens a file for writing that appears whole, or not at all if the block fails.

    What is written waits locally until the block ends, in memory or on the disk.
    """
    with tempfile.SpooledTemporaryFile(_PART_BYTES) as spool:
        yield spool
        spool.seek(0)
        write(url, spool)


def list_files(folder: str, *, recursive: bool) -> list[RemoteFile]:
    """Returns the files of a folder, with those of the folders in it if `recursive`.

    The empty objects by which some tools represent folders are left out.

    Raises:
        errors.UserError: for a web server, which has no listing.
        errors.BuildError: if the store does not answer, or an object has a name that no file
            can have, such as one with an empty part.
    """
    store, prefix = _open(folder, web=False)
    root, prefix = _split(folder)[0], prefix.strip("/")
    with _clear_errors(folder):
        if recursive:
            found = [
                meta for batch in obstore.list(store, prefix, chunk_size=1000) for meta in batch
            ]
        else:
            found = list(obstore.list_with_delimiter(store, prefix)["objects"])
    folders = {prefix}
    if any(not meta["size"] for meta in found):
        folders.update(
            "/".join(parts[:depth])
            for parts in (meta["path"].split("/") for meta in found)
            for depth in range(1, len(parts))
        )
    return [
        RemoteFile(f"{root}/{meta['path']}", meta["size"], _mark(meta))
        for meta in found
        if meta["size"] or meta["path"] not in folders
    ]


def delete(urls: Sequence[str]) -> None:
    """Deletes files of one bucket; those that are not there are passed over.

    Raises:
        errors.BuildError: if the store refuses.
    """
    if not urls:
        return
    store, _ = _open(urls[0], web=False)
    paths = [_split(url)[1] for url in urls]

    def delete_one(path: str) -> None:
        with contextlib.suppress(FileNotFoundError), _clear_errors(urls[0]):
            obstore.delete(store, path)

    try:
        with _clear_errors(urls[0]):
            obstore.delete(store, paths)
    except FileNotFoundError:
        # One was not there, and the store did not say what became of the others.
        with ThreadPoolExecutor(NUM_CONNECTIONS) as pool:
            collections.deque(pool.map(delete_one, paths), maxlen=0)


class RangeFile(io.RawIOBase):
    """A remote file that can be sought; each read is one request for exactly those bytes."""

    def __init__(self, file: RemoteFile) -> None:
        self._file = file
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._file.size}[whence]
        if base + offset < 0:
            raise OSError(f"cannot seek to {base + offset} in {shown(self._file.url)}")
        self._position = base + offset
        return self._position

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")
        data = self.read(len(view))
        view[: len(data)] = data
        return len(data)

    def read(self, size: int | None = -1) -> bytes:
        rest = max(self._file.size - self._position, 0)
        length = rest if size is None or size < 0 else min(size, rest)
        if not length:
            return b""
        data = read(self._file.url, self._position, length, self._file.mark)
        self._position += len(data)
        return data

    def readall(self) -> bytes:
        return self.read()


# --------------------------------------------------------------------------------------------------
# Opening stores
# --------------------------------------------------------------------------------------------------


def _split(url: str) -> tuple[str, str]:
    """Returns what a store is opened by, and the path in it. Names are taken word for word."""
    scheme, _, rest = url.partition("://")
    if scheme in _WEB:
        return url, ""
    bucket, _, path = rest.partition("/")
    return f"{scheme}://{bucket}", path


def _open(url: str, *, web: bool = True) -> tuple[Any, str]:
    """Returns the store of a URL, and the path in it.

    Args:
        url: of a file or a folder.
        web: whether a web server will do.

    Raises:
        errors.UserError: if there is no such kind of store, or its settings are wrong.
    """
    global _opened_by
    root, path = _split(url)
    if _open_stores and _opened_by != os.getpid():
        raise RuntimeError(
            "a store was opened before this process was forked, and would wait for ever here; "
            "open stores after the fork"
        )
    if not web and root.partition("://")[0] in _WEB:
        raise errors.UserError(
            f"cannot use {shown(url)} as a folder: a web server gives single files and lists "
            "none. Give --input a .zip with --source archive, and write to a local folder or a "
            "bucket"
        )
    if root not in _open_stores:
        with _opening:
            if root not in _open_stores:
                _opened_by = os.getpid()
                _open_stores[root] = _opened(root)
    return _open_stores[root], path


def _opened(root: str) -> Any:
    scheme = root.partition("://")[0]
    if scheme not in _KINDS:
        raise errors.UserError(
            f"cannot use {root}: expected s3://, gs://, az:// or https://, received {scheme}://"
        )
    client_options: dict[str, Any] = {
        "allow_http": True,  # for an endpoint that the user gave as http://
        "connect_timeout": datetime.timedelta(seconds=min(SILENT_SECONDS, 10)),
        "read_timeout": datetime.timedelta(seconds=SILENT_SECONDS),
        "timeout": datetime.timedelta(seconds=_ANSWER_SECONDS),
    }
    for variable in ("AWS_CA_BUNDLE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"):
        if file := os.environ.get(variable):
            client_options["root_certificate"] = Path(file).read_bytes()
            break
    retries = {
        "max_retries": 6,
        "retry_timeout": datetime.timedelta(seconds=RETRY_SECONDS),
    }
    settings = credentials.settings(scheme)
    try:
        return _KINDS[scheme].from_url(
            root, client_options=client_options, retry_config=retries, **settings
        )
    except (exceptions.BaseError, ValueError) as error:
        raise errors.UserError(f"cannot use {shown(root)}: {_reason(error)}") from None


# --------------------------------------------------------------------------------------------------
# What stores say
# --------------------------------------------------------------------------------------------------


def _mark(meta: Any) -> str:
    # A listing of Azure's has the ETag without the quotes that it has elsewhere.
    if e_tag := meta["e_tag"]:
        return e_tag.replace('"', "")
    return f"time {meta['last_modified'].isoformat()}"


@contextlib.contextmanager
def _clear_errors(url: str) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError as error:
        if re.search("NoSuchBucket|ContainerNotFound", str(error)):
            raise errors.BuildError(f"cannot use {shown(url)}: {_reason(error)}") from None
        raise FileNotFoundError(shown(url)) from None
    except exceptions.PreconditionError:
        raise _changed(url) from None
    except (exceptions.BaseError, ValueError) as error:
        raise errors.BuildError(f"cannot use {shown(url)}: {_reason(error)}") from None


def _changed(url: str) -> errors.BuildError:
    return errors.BuildError(
        f"{shown(url)} changed since the build began; start again with --overwrite"
    )


def _reason(error: Exception) -> str:
    """Returns what a store said, in one line, without signatures."""
    text = str(error).partition("\n\nDebug source")[0]
    # The first are the words for stores, the others those for web servers.
    if re.search("non-partial response|[Rr]ange request", text):
        return (
            "the server sent the whole file where a part of it was asked for; copy the file to a "
            "local disk"
        )
    head, found, body = text.partition("<?xml")
    if found:
        said = [re.search(f"<{tag}>([^<]*)", body) for tag in ("Code", "Message")]
        text = head + ": ".join(match[1] for match in said if match)
    if "169.254.169.254" in text:
        text = f"no credentials were found, and this machine has no role of its own ({text})"
    return " ".join(re.sub(r"\?[^\s()]*=[^\s()]*", "", text).split())
