"""Exact byte ranges of files on an object store, and uploads that appear whole or not at all.

Beam's own streams are made for reading a file from end to end: on S3 a read of a few bytes asks
for everything up to the end of the file and hangs up (apache-beam 2.77), on both S3 and Google
Cloud Storage the buffer is 16 MB, each opened file makes a client of its own, which costs up to
half a second, and an upload that is dropped half-way is completed as if it were whole. So where
the store is known, its client is used directly, with Beam's settings; for any other file system
Beam's stream is opened and sought.
"""

from __future__ import annotations

import contextlib
import io
import tempfile
from collections.abc import Callable, Iterator
from typing import IO, Any, Protocol

from apache_beam.io.filesystem import BeamIOError, CompressionTypes, FileMetadata
from apache_beam.io.filesystems import FileSystems

from pipelines import errors

#: Reads that may wait for the network at the same time, in one process: the stores' clients keep
#: so many connections, and would open and drop further ones.
NUM_CONNECTIONS = 10

# Up to here a file waits in memory for its upload, beyond it on the local disk.
_SPOOL_BYTES = 8 * 1024 * 1024
_COPY_BYTES = 8 * 1024 * 1024


def is_remote(path: str) -> bool:
    """Tells whether a path is a URL such as gs://bucket/folder."""
    return "://" in path


Advance = Callable[[int], object]


class Store(Protocol):
    """Reads and writes the files of one file system; safe to use from several threads."""

    def describe(self, url: str) -> tuple[int, str]:
        """Returns a file's size in bytes and a mark that changes with its content.

        Raises:
            FileNotFoundError: if there is no such file.
        """
        ...

    def read(self, url: str, start: int, length: int, mark: str = "") -> bytes:
        """Returns `length` bytes from `start`, fewer where the file ends.

        Args:
            url: the file.
            start: first byte.
            length: number of bytes.
            mark: what `describe` returned, if the file must not have changed since.

        Raises:
            FileNotFoundError: if there is no such file.
            errors.BuildError: if it has changed, or the store does not answer.
        """
        ...

    def write(self, url: str, source: IO[bytes], advance: Advance | None = None) -> None:
        """Copies an open file, from where it stands, to a URL.

        Args:
            url: where to.
            source: the file.
            advance: is told the number of bytes of each piece.

        Raises:
            errors.BuildError: if the store does not take it.
        """
        ...


def open_store(url: str) -> Store:
    """Returns the reader for the file system of a URL.

    Raises:
        errors.UserError: if Beam has no such file system, or its client is not installed.
    """
    scheme = url.partition("://")[0]
    try:
        file_system = FileSystems.get_filesystem(url)
        options = FileSystems._pipeline_options
        if scheme not in _STORES or _STORES[scheme][0] is not options:
            _STORES[scheme] = options, _KINDS.get(scheme, _AnyFileSystem)(file_system)
    except (ValueError, ImportError):
        raise errors.UserError(f"cannot use {url}: {_missing(url)}") from None
    return _STORES[scheme][1]


def match(pattern: str) -> list[FileMetadata]:
    """Returns the files whose URLs fit a pattern, in which `**` goes through folders.

    Raises:
        errors.UserError: if they cannot be listed.
    """
    try:
        return FileSystems.match([pattern])[0].metadata_list
    except ValueError:
        raise errors.UserError(f"cannot list {pattern}: {_missing(pattern)}") from None
    except BeamIOError as error:
        raise errors.UserError(f"cannot list {pattern}: {_reason(error)}") from None


@contextlib.contextmanager
def create(url: str) -> Iterator[IO[bytes]]:
    """Opens a file for writing that appears whole, or not at all if the block fails.

    What is written waits locally until the block ends, in memory or on the disk.
    """
    with tempfile.SpooledTemporaryFile(_SPOOL_BYTES) as spool:
        yield spool
        spool.seek(0)
        open_store(url).write(url, spool)


class RangeFile(io.RawIOBase):
    """A remote file that can be sought; each read is one request for exactly those bytes."""

    def __init__(self, store: Store, url: str, size: int, mark: str = "") -> None:
        self._store, self._url, self._size, self._mark = store, url, size, mark
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        if base + offset < 0:
            raise OSError(f"cannot seek to {base + offset} in {self._url}")
        self._position = base + offset
        return self._position

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")
        data = self.read(len(view))
        view[: len(data)] = data
        return len(data)

    def read(self, size: int = -1) -> bytes:
        rest = max(self._size - self._position, 0)
        length = rest if size is None or size < 0 else min(size, rest)
        if not length:
            return b""
        data = self._store.read(self._url, self._position, length, self._mark)
        self._position += len(data)
        return data

    def readall(self) -> bytes:
        return self.read()


class _S3:
    def __init__(self, file_system: Any) -> None:
        from apache_beam.io.aws.clients.s3 import boto3_client

        if boto3_client.boto3 is None:
            raise ImportError("boto3")
        self._client = boto3_client.Client(file_system._options).client

    def describe(self, url: str) -> tuple[int, str]:
        found = self._call("head_object", url)
        return found["ContentLength"], found["ETag"]

    def read(self, url: str, start: int, length: int, mark: str = "") -> bytes:
        condition = {"IfMatch": mark} if mark else {}
        found = self._call(
            "get_object", url, Range=f"bytes={start}-{start + length - 1}", **condition
        )
        return found["Body"].read()

    def write(self, url: str, source: IO[bytes], advance: Advance | None = None) -> None:
        from boto3.exceptions import Boto3Error
        from botocore.exceptions import BotoCoreError, ClientError

        bucket, key = self._parts(url)
        try:
            self._client.upload_fileobj(source, bucket, key, Callback=advance)
        except (Boto3Error, BotoCoreError, ClientError) as error:
            raise errors.BuildError(f"cannot write {url}: {error}") from None

    @staticmethod
    def _parts(url: str) -> tuple[str, str]:
        bucket, _, key = url.removeprefix("s3://").partition("/")
        return bucket, key

    def _call(self, method: str, url: str, **arguments: Any) -> Any:
        from botocore.exceptions import BotoCoreError, ClientError

        bucket, key = self._parts(url)
        try:
            return getattr(self._client, method)(Bucket=bucket, Key=key, **arguments)
        except ClientError as error:
            status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode")
            if status == 404:
                raise FileNotFoundError(url) from None
            if status == 412:
                raise _changed(url) from None
            raise errors.BuildError(f"cannot read {url}: {error}") from None
        except BotoCoreError as error:
            raise errors.BuildError(f"cannot read {url}: {error}") from None


class _GoogleCloudStorage:
    def __init__(self, file_system: Any) -> None:
        from apache_beam.io.gcp.gcsio import GcsIO

        self._client = GcsIO(pipeline_options=file_system._pipeline_options).client

    def describe(self, url: str) -> tuple[int, str]:
        from google.api_core.exceptions import GoogleAPICallError

        bucket, name = self._parts(url)
        try:
            blob = self._client.bucket(bucket).get_blob(name)
        except GoogleAPICallError as error:
            raise errors.BuildError(f"cannot read {url}: {error.message}") from None
        if blob is None:
            raise FileNotFoundError(url)
        return blob.size, str(blob.generation)

    def read(self, url: str, start: int, length: int, mark: str = "") -> bytes:
        from google.api_core import exceptions

        bucket, name = self._parts(url)
        try:
            return (
                self._client.bucket(bucket)
                .blob(name)
                .download_as_bytes(
                    start=start,
                    end=start + length - 1,
                    raw_download=True,
                    checksum=None,
                    if_generation_match=int(mark) if mark else None,
                )
            )
        except exceptions.NotFound:
            raise FileNotFoundError(url) from None
        except exceptions.PreconditionFailed:
            raise _changed(url) from None
        except exceptions.RequestRangeNotSatisfiable:
            return b""
        except exceptions.GoogleAPICallError as error:
            raise errors.BuildError(f"cannot read {url}: {error.message}") from None

    def write(self, url: str, source: IO[bytes], advance: Advance | None = None) -> None:
        from google.api_core.exceptions import GoogleAPICallError

        bucket, name = self._parts(url)
        blob = self._client.bucket(bucket).blob(name, chunk_size=_COPY_BYTES)
        try:
            blob.upload_from_file(source if advance is None else _Told(source, advance))
        except GoogleAPICallError as error:
            raise errors.BuildError(f"cannot write {url}: {error.message}") from None

    @staticmethod
    def _parts(url: str) -> tuple[str, str]:
        bucket, _, name = url.removeprefix("gs://").partition("/")
        return bucket, name


class _AnyFileSystem:
    """Beam's streams, opened for each read, as threads cannot share them."""

    def __init__(self, file_system: Any) -> None:
        pass

    def describe(self, url: str) -> tuple[int, str]:
        try:
            found = FileSystems.match([url])[0].metadata_list
        except BeamIOError as error:
            raise errors.BuildError(f"cannot read {url}: {_reason(error)}") from None
        if not found:
            raise FileNotFoundError(url)
        return found[0].size_in_bytes, str(found[0].last_updated_in_seconds or "")

    def read(self, url: str, start: int, length: int, mark: str = "") -> bytes:
        try:
            with FileSystems.open(url, compression_type=CompressionTypes.UNCOMPRESSED) as stream:
                stream.seek(start)
                return stream.read(length)
        except FileNotFoundError:
            raise
        except (BeamIOError, OSError) as error:
            raise errors.BuildError(f"cannot read {url}: {_reason(error)}") from None

    def write(self, url: str, source: IO[bytes], advance: Advance | None = None) -> None:
        try:
            # Not `with`: closing is what makes an object appear, and half a one must not.
            target = FileSystems.create(url, compression_type=CompressionTypes.UNCOMPRESSED)
            while piece := source.read(_COPY_BYTES):
                target.write(piece)
                if advance is not None:
                    advance(len(piece))
            target.close()
        except (BeamIOError, OSError) as error:
            raise errors.BuildError(f"cannot write {url}: {_reason(error)}") from None


class _Told:
    """A file that tells how many bytes were read of it."""

    def __init__(self, file: IO[bytes], advance: Advance) -> None:
        self._file, self._advance = file, advance

    def read(self, size: int = -1) -> bytes:
        data = self._file.read(size)
        self._advance(len(data))
        return data

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


_KINDS: dict[str, Callable[[Any], Store]] = {"s3": _S3, "gs": _GoogleCloudStorage}

# By scheme, with the options it was made for: a client costs up to half a second.
_STORES: dict[str, tuple[Any, Store]] = {}


def _changed(url: str) -> errors.BuildError:
    return errors.BuildError(f"{url} changed since the build began; start again with --overwrite")


def _reason(error: Exception) -> str:
    """Returns what a store said; Beam hides it in a dictionary by URL."""
    details = getattr(error, "exception_details", None)
    return "; ".join(str(detail) for detail in details.values()) if details else str(error)


def _missing(url: str) -> str:
    scheme = url.partition("://")[0]
    extra = {"s3": "aws", "gs": "gcp", "abfs": "azure", "azfs": "azure"}.get(scheme)
    if extra is None:
        return f"Beam knows no file system {scheme}://"
    return (
        f"the client for {scheme}:// is not installed; install it with pip install "
        f"'apache-beam[{extra}]'"
    )
