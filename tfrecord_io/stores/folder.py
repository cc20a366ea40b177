"""Files of a dataset's folder, on a local disk or, by URL, on a store, whose reads are repeated.

Stores have retries of their own. Those here are for what they do not notice, such as an answer that
was cut off or garbled.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import io
import logging
import os
import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple, TypeVar
from urllib.parse import urlsplit

from tfrecord_io.terminal.address import Address, is_remote
from tfrecord_io.terminal.errors import ChangedError, StoreError, UserError

_log = logging.getLogger(__name__)

Result = TypeVar("Result")

#: Files that are read at once: a store's answers are mostly waited for.
NUM_THREADS = 16

NUM_ATTEMPTS = 5
_RETRY_SECONDS = 120.0

_BUFFER_LENGTH = 1 << 20
_LOOPBACK = re.compile(r"localhost|127\.\d+\.\d+\.\d+|::1")


@dataclasses.dataclass(frozen=True)
class DataPath:
    """Where a dataset is; every function that reads one takes this in place of its folder.

    What a URL gives is kept in `cache_dir`, up to `cache_gb` times 10^9 bytes.
    """

    directory: Address
    cache_dir: str | os.PathLike[str] | None = None
    cache_gb: float | None = None

    @classmethod
    def of(
        cls,
        directory: str | os.PathLike[str],
        cache_dir: str | os.PathLike[str] | None = None,
        cache_gb: float | None = None,
    ) -> DataPath:
        """Returns a `DataPath` as it is, or with what is given here in its place."""
        given = directory if isinstance(directory, cls) else cls(Address(directory))
        return cls(
            given.directory,
            given.cache_dir if cache_dir is None else cache_dir,
            given.cache_gb if cache_gb is None else cache_gb,
        )

    def __fspath__(self) -> Address:
        return self.directory

    __str__ = __fspath__


def path_in(directory: str | os.PathLike[str], name: str) -> Address:
    """Returns the path or URL of a file in a folder.

    Raises:
        UserError: if the URL has a signature, which would be that of a single file, or is http://
            and not of this machine: anybody on the way could change what it gives.
    """
    folder = Address(directory)
    if folder.startswith(("http://", "https://")):
        parts = urlsplit(folder.opened)
        if parts.query or parts.fragment:
            raise UserError(
                f"expected the URL of a folder, without ? and # (not shown here), received {folder}"
            )
        if parts.scheme == "http" and not _LOOPBACK.fullmatch(parts.hostname or ""):
            raise UserError(f"cannot read a dataset from {folder}: use https://")
    return folder / name


def open_file(directory: str | os.PathLike[str], name: str) -> io.BufferedReader:
    """Opens a file of a folder for reading; on a store, parts are fetched when they are read.

    Raises what `open` and `remote.describe` raise.
    """
    path = path_in(directory, name)
    if not is_remote(path):
        return open(path, "rb")  # noqa: PTH123 - the path is a string here
    from tfrecord_io.stores import remote  # takes a while to import

    return io.BufferedReader(remote.describe(path).open(), _BUFFER_LENGTH)


def read_file(directory: str | os.PathLike[str], name: str) -> bytes:
    """Returns the content of a file of a folder; raises what `open_file` and `patiently` raise."""
    path = path_in(directory, name)
    if not is_remote(path):
        return Path(path).read_bytes()
    from tfrecord_io.stores import remote  # takes a while to import

    return patiently(lambda: remote.read_file(path))


class StoredFiles(NamedTuple):
    """Files of a folder as they were when they were described.

    Attributes:
        sizes: bytes of each file that exists, by its name.
        read: returns bytes of a file, by name, start and length; on a store, those of the described
            version, or ChangedError is raised.
        versions: a digest of the URLs and versions of files on a store; "" for a local folder.
    """

    sizes: Mapping[str, int]
    read: Callable[[str, int, int], bytes | memoryview]
    versions: str = ""


def describe_shards(directory: str | os.PathLike[str], names: Sequence[str]) -> StoredFiles:
    """Describes shards of a folder; raises what `remote.describe` and `remote.list_files` raise."""
    if is_remote(directory):
        return _describe_remote(Address(directory), names)
    folder = Path(directory)
    sizes = {path.name: path.stat().st_size for path in folder.glob("*.tfrecord")}

    def read(name: str, start: int, length: int) -> bytes:
        with (folder / name).open("rb") as file:
            file.seek(start)
            return file.read(length)

    return StoredFiles(sizes, read)


def _describe_remote(folder: Address, names: Sequence[str]) -> StoredFiles:
    from tfrecord_io.stores import remote

    def describe(name: str) -> remote.RemoteFile | None:
        with contextlib.suppress(FileNotFoundError):
            return patiently(lambda: remote.describe(path_in(folder, name)))
        return None

    if folder.startswith(("http://", "https://")):  # which has no listing
        with ThreadPoolExecutor(NUM_THREADS) as executor:
            found = [file for file in executor.map(describe, names) if file is not None]
    else:
        found = patiently(lambda: remote.list_files(folder, recursive=False))
    files = {file.url.rpartition("/")[2]: file for file in found}

    def read(name: str, start: int, length: int) -> memoryview:
        file = files[name]
        return remote.read(file.url, start, length, file.mark)

    # A mark tells the versions of one file apart, and says nothing of a copy elsewhere.
    marks = repr([(files[n].url, files[n].mark) for n in names if n in files])
    sizes = {name: file.size for name, file in files.items()}
    return StoredFiles(sizes, read, hashlib.sha256(marks.encode()).hexdigest())


def patiently(read: Callable[[], Result], closed: threading.Event | None = None) -> Result:
    """Returns the result of a function, which is called again after a `StoreError`.

    `closed` ends the attempts when it is set.

    Raises:
        StoreError: if it fails five times, or after two minutes, or at once if a file has changed.
    """
    closed = closed or threading.Event()
    deadline = time.monotonic() + _RETRY_SECONDS
    for attempt in range(1, NUM_ATTEMPTS):
        try:
            return read()
        except ChangedError:
            raise
        except StoreError as error:
            if time.monotonic() > deadline or closed.is_set():
                raise
            _log.warning("%s; trying again (%d of %d)", error, attempt, NUM_ATTEMPTS - 1)
            closed.wait(0.1 * 4 ** (attempt - 1))
    return read()
