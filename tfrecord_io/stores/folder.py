"""Files of a dataset's folder, on a local disk or, by URL, on a store."""

from __future__ import annotations

import dataclasses
import io
import os
import re
from urllib.parse import urlsplit

from tfrecord_io.errors import UserError

_BUFFER_LENGTH = 1 << 20
_LOOPBACK = re.compile(r"localhost|127\.\d+\.\d+\.\d+|::1")


@dataclasses.dataclass(frozen=True)
class DataPath:
    """Where a dataset is; every function that reads one takes this in place of its folder.

    What a URL gives is kept in `cache_dir`, up to `cache_gb` times 10^9 bytes.
    """

    directory: str
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
        given = directory if isinstance(directory, cls) else cls(os.fspath(directory))
        return cls(
            given.directory,
            given.cache_dir if cache_dir is None else cache_dir,
            given.cache_gb if cache_gb is None else cache_gb,
        )

    def __fspath__(self) -> str:
        return self.directory

    __str__ = __fspath__


def is_remote(directory: str | os.PathLike[str]) -> bool:
    """Returns whether a folder is named by a URL such as gs://bucket/data."""
    return "://" in os.fspath(directory)


def path_in(directory: str | os.PathLike[str], name: str) -> str:
    """Returns the path or URL of a file in a folder.

    Raises:
        UserError: if the URL has a signature, which would be that of a single file, or is http://
            and not of this machine: anybody on the way could change what it gives.
    """
    folder = os.fspath(directory)
    if folder.startswith(("http://", "https://")):
        parts = urlsplit(folder)
        if parts.query or parts.fragment:
            raise UserError(f"expected the URL of a folder, without ? and #, received {folder}")
        if parts.scheme == "http" and not _LOOPBACK.fullmatch(parts.hostname or ""):
            raise UserError(f"cannot read a dataset from {folder}: use https://")
    return f"{folder.rstrip('/')}/{name}"


def open_file(directory: str | os.PathLike[str], name: str) -> io.BufferedReader:
    """Opens a file of a folder for reading; on a store, parts are fetched when they are read.

    Raises what `open` and `remote.describe` raise.
    """
    path = path_in(directory, name)
    if not is_remote(path):
        return open(path, "rb")  # noqa: PTH123 - the path is a string here
    from tfrecord_io.stores import remote  # takes a while to import

    return io.BufferedReader(remote.describe(path).open(), _BUFFER_LENGTH)
