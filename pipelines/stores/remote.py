"""Exact byte ranges of files on an object store, and uploads that appear whole or not at all.

Beam's own streams are made for reading a file from end to end: on S3 a read of a few bytes asks
for everything up to the end of the file and hangs up (apache-beam 2.77), on both S3 and Google
Cloud Storage the buffer is 16 MB, each opened file makes a client of its own, which costs up to
half a second, and an upload that is dropped half-way is completed as if it were whole. So where
the store is known, its client is used directly, with Beam's settings; for any other file system
Beam's stream is opened and sought.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import email.utils
import functools
import io
import math
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import IO, Any, Protocol

from apache_beam.io.filesystem import BeamIOError, CompressionTypes
from apache_beam.io.filesystems import FileSystems

from pipelines import errors, range_requests

#: Reads that may wait for the network at the same time, in one process: the stores' clients keep
#: so many connections, and would open and drop further ones.
NUM_CONNECTIONS = 10

# Up to here a file waits in memory for its upload, beyond it on the local disk.
_SPOOL_BYTES = 8 * 1024 * 1024
_COPY_BYTES = 8 * 1024 * 1024

_SIGNED_SECONDS = 1800
_READ_ATTEMPTS = 4


def is_remote(path: str) -> bool:
    """Tells whether a path is a URL such as gs://bucket/folder."""
    return "://" in path


Advance = Callable[[int], object]

#: What tells one version of a file from another: a text that `describe` returns, or a number from
#: a listing. Where a store has none it is empty or 0, and every version will do.
Mark = str | int


@dataclasses.dataclass(frozen=True)
class RemoteFile:
    """A file in a listing.

    Attributes:
        url: its address.
        size: its bytes.
        mark: a number that changes with the file, such as the time of its last change in
            nanoseconds; 0 where the store does not say.
    """

    url: str
    size: int
    mark: int


class Store(Protocol):
    """Reads and writes the files of one file system; safe to use from several threads."""

    def describe(self, url: str) -> tuple[int, str]:
        """Returns a file's size in bytes and a mark that changes with its content.

        Raises:
            FileNotFoundError: if there is no such file.
        """
        ...

    def read(self, url: str, start: int, length: int, mark: Mark = "") -> bytes:
        """Returns `length` bytes from `start`, fewer where the file ends.

        Args:
            url: the file.
            start: first byte; the file has it.
            length: number of bytes, at least one.
            mark: what `describe` or `list` said, if the file must not have changed since.

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

    def list(self, folder: str, *, recursive: bool) -> list[RemoteFile]:
        """Returns the files of a folder, with those of the folders in it if `recursive`.

        Raises:
            errors.BuildError: if the store does not answer.
        """
        ...

    def delete(self, urls: Sequence[str]) -> None:
        """Deletes files of one bucket; those that are not there are passed over.

        Raises:
            errors.BuildError: if the store refuses.
        """
        ...


def open_store(url: str) -> Store:
    """Returns the reader for the file system of a URL.

    Raises:
        errors.UserError: if Beam has no such file system, its client is not installed, or the
            client does not take its settings.
    """
    scheme = url.partition("://")[0]
    try:
        file_system = FileSystems.get_filesystem(url)
    except ValueError:
        raise errors.UserError(f"cannot use {url}: {_missing(url)}") from None
    options = FileSystems._pipeline_options
    if scheme not in _STORES or _STORES[scheme][0] is not options:
        try:
            _STORES[scheme] = options, _KINDS.get(scheme, _AnyFileSystem)(file_system)
        except ImportError:
            raise errors.UserError(f"cannot use {url}: {_missing(url)}") from None
        except ValueError as error:
            raise errors.UserError(f"cannot use {url}: {error}") from None
    return _STORES[scheme][1]


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

    def __init__(self, store: Store, url: str, size: int, mark: Mark = "") -> None:
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
        from botocore.exceptions import BotoCoreError
        from botocore.httpsession import get_cert_path

        try:
            self._client = boto3_client.Client(file_system._options).client
        except BotoCoreError as error:  # such as a profile that does not exist
            raise ValueError(error) from None
        self._signed_address = functools.lru_cache(256)(self._sign)
        session = self._client._endpoint.http_session
        verify = getattr(session, "_verify", True)
        self._connections = range_requests.Connections(get_cert_path(verify) or None)

    def _sign(self, url: str, period: int) -> str:
        """Returns an address that is good for two periods; `period` only parts the cache."""
        bucket, key = self._parts(url)
        return self._client.generate_presigned_url(
            "get_object", {"Bucket": bucket, "Key": key}, ExpiresIn=2 * _SIGNED_SECONDS
        )

    def describe(self, url: str) -> tuple[int, str]:
        found = self._call("head_object", url)
        return found["ContentLength"], found["ETag"]

    def read(self, url: str, start: int, length: int, mark: Mark = "") -> bytes:
        wanted = {"Range": f"bytes={start}-{start + length - 1}"}
        if isinstance(mark, str):
            condition = {"If-Match": mark} if mark else {}
        else:
            since = email.utils.formatdate(mark // 1_000_000_000, usegmt=True)
            condition = {"If-Unmodified-Since": since} if mark else {}
        if (data := self._read_quickly(url, wanted | condition)) is not None:
            return data
        arguments = wanted | {name.replace("-", ""): value for name, value in condition.items()}
        for attempts_left in reversed(range(_READ_ATTEMPTS)):
            found = self._call("get_object", url, **arguments)
            try:
                # The client tries again what is not answered, but not an answer that is cut off.
                with self._clear_errors(url):
                    data = found["Body"].read()
                break
            except errors.BuildError:
                if not attempts_left:
                    raise
        # A server may ignore the range.
        return data if "ContentRange" in found else data[start : start + length]

    def _read_quickly(self, url: str, headers: dict[str, str]) -> bytes | None:
        """Reads by an address that is signed for all ranges of the file; None if that fails.

        A call of the client takes about as much of a core as decoding a JPEG; this takes a tenth
        of it (`benchmarks/range_cost.py`), or half where only the client knows the way. Whatever
        goes wrong is left to the client, which tries again and explains.
        """
        from botocore.awsrequest import AWSPreparedRequest, HeadersDict
        from botocore.exceptions import BotoCoreError

        address = self._signed_address(url, int(time.monotonic() // _SIGNED_SECONDS))
        if self._is_direct(address):
            return self._connections.read(address, headers)
        request = AWSPreparedRequest("GET", address, HeadersDict(headers), None, False)
        try:
            answer = self._client._endpoint.http_session.send(request)
        except BotoCoreError:
            return None
        # Nothing else looks whether the answer was cut off.
        whole = len(answer.content) == int(answer.headers.get("Content-Length", -1))
        return answer.content if answer.status_code == 206 and whole else None

    def _is_direct(self, address: str) -> bool:
        """Tells whether a server is reached without a proxy or a certificate of the client."""
        session = self._client._endpoint.http_session
        try:
            return not (
                session._proxy_config.proxy_url_for(address)
                or session._cert_file
                or (session._verify is False and address.startswith("https:"))
            )
        except AttributeError:  # of another version, which keeps its settings elsewhere
            return False

    def write(self, url: str, source: IO[bytes], advance: Advance | None = None) -> None:
        bucket, key = self._parts(url)
        with self._clear_errors(url):
            self._client.upload_fileobj(source, bucket, key, Callback=advance)

    def list(self, folder: str, *, recursive: bool) -> list[RemoteFile]:
        bucket, prefix = self._parts(_as_folder(folder))
        arguments = {} if recursive else {"Delimiter": "/"}
        with self._clear_errors(folder):
            pages = self._client.get_paginator("list_objects_v2").paginate(
                Bucket=bucket, Prefix=prefix, **arguments
            )
            return [
                RemoteFile(
                    f"s3://{bucket}/{item['Key']}",
                    item["Size"],
                    # In whole seconds, as headers have them, and not before the change itself.
                    math.ceil(item["LastModified"].timestamp()) * 1_000_000_000,
                )
                for page in pages
                for item in page.get("Contents", [])
            ]

    def delete(self, urls: Sequence[str]) -> None:
        for batch in _batches(urls, 1000):
            bucket, _ = self._parts(batch[0])
            keys = [{"Key": self._parts(url)[1]} for url in batch]
            with self._clear_errors(batch[0]):
                answer = self._client.delete_objects(
                    Bucket=bucket, Delete={"Objects": keys, "Quiet": True}
                )
            for refused in answer.get("Errors", []):
                raise errors.BuildError(
                    f"cannot delete s3://{bucket}/{refused['Key']}: {refused['Message']}"
                )

    @staticmethod
    def _parts(url: str) -> tuple[str, str]:
        bucket, _, key = url.removeprefix("s3://").partition("/")
        return bucket, key

    def _call(self, method: str, url: str, **arguments: Any) -> Any:
        bucket, key = self._parts(url)
        with self._clear_errors(url):
            return getattr(self._client, method)(Bucket=bucket, Key=key, **arguments)

    @staticmethod
    @contextlib.contextmanager
    def _clear_errors(url: str) -> Iterator[None]:
        from boto3.exceptions import Boto3Error
        from botocore.exceptions import BotoCoreError, ClientError

        try:
            yield
        except ClientError as error:
            status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode")
            code = error.response.get("Error", {}).get("Code")
            if status == 404 and code != "NoSuchBucket":
                raise FileNotFoundError(url) from None
            if status == 412:
                raise _changed(url) from None
            raise errors.BuildError(f"cannot use {url}: {error}") from None
        except (Boto3Error, BotoCoreError) as error:
            raise errors.BuildError(f"cannot use {url}: {error}") from None


class _GoogleCloudStorage:
    def __init__(self, file_system: Any) -> None:
        import google.auth.transport.requests
        import requests
        from apache_beam.io.gcp.gcsio import GcsIO

        self._client = GcsIO(pipeline_options=file_system._pipeline_options).client
        self._refresh = google.auth.transport.requests.Request()
        certificates = os.environ.get("REQUESTS_CA_BUNDLE") or os.environ.get("CURL_CA_BUNDLE")
        self._connections = range_requests.Connections(certificates or requests.certs.where())
        self._is_direct = functools.lru_cache(8)(_is_direct)

    def describe(self, url: str) -> tuple[int, str]:
        bucket, name = self._parts(url)
        with self._clear_errors(url):
            blob = self._client.bucket(bucket).get_blob(name)
        if blob is None:
            raise FileNotFoundError(url)
        return blob.size, str(blob.generation)

    def read(self, url: str, start: int, length: int, mark: Mark = "") -> bytes:
        # A bucket that keeps old versions goes on giving this one; any other has it no more.
        blob = self._blob(url, generation=int(mark) if mark else None)
        if (data := self._read_quickly(blob, start, length)) is not None:
            return data
        try:
            with self._clear_errors(url):
                return blob.download_as_bytes(
                    start=start, end=start + length - 1, raw_download=True, checksum=None
                )
        except FileNotFoundError:
            if mark:
                raise _changed(url) from None
            raise

    def _read_quickly(self, blob: Any, start: int, length: int) -> bytes | None:
        """Reads as the client would, in a fifth of its CPU time; None if that fails.

        Whatever goes wrong is left to the client, which tries again and explains.
        """
        from google.auth.exceptions import GoogleAuthError

        # What is stored compressed must come as it is stored: it has no ranges otherwise.
        headers = {"Range": f"bytes={start}-{start + length - 1}", "Accept-Encoding": "gzip"}
        try:
            address = blob._get_download_url(self._client)
            if not self._is_direct(address.partition("/download/")[0]):
                return None
            self._client._credentials.before_request(self._refresh, "GET", address, headers)
        except (GoogleAuthError, AttributeError):  # or a client of another version
            return None
        return self._connections.read(address, headers)

    def write(self, url: str, source: IO[bytes], advance: Advance | None = None) -> None:
        told = source if advance is None else _Told(source, advance)
        # Of a small file whose size it knows, the client makes one request instead of two.
        start = source.tell()
        size = source.seek(0, io.SEEK_END) - start
        source.seek(start)
        with self._clear_errors(url):
            self._blob(url).upload_from_file(told, size=size)

    def list(self, folder: str, *, recursive: bool) -> list[RemoteFile]:
        bucket, prefix = self._parts(_as_folder(folder))
        with self._clear_errors(folder):
            blobs = self._client.list_blobs(
                bucket, prefix=prefix, delimiter=None if recursive else "/"
            )
            return [
                RemoteFile(
                    f"gs://{bucket}/{blob.name}",
                    blob.size,
                    blob.generation or 0,
                )
                for blob in blobs
            ]

    def delete(self, urls: Sequence[str]) -> None:
        # The store takes one a request; a large build leaves thousands.
        with ThreadPoolExecutor(NUM_CONNECTIONS) as pool:
            collections.deque(pool.map(self._delete, urls), maxlen=0)

    def _delete(self, url: str) -> None:
        with contextlib.suppress(FileNotFoundError), self._clear_errors(url):
            self._blob(url).delete()

    def _blob(self, url: str, generation: int | None = None) -> Any:
        bucket, name = self._parts(url)
        return self._client.bucket(bucket).blob(name, chunk_size=_COPY_BYTES, generation=generation)

    @staticmethod
    def _parts(url: str) -> tuple[str, str]:
        bucket, _, name = url.removeprefix("gs://").partition("/")
        return bucket, name

    @staticmethod
    @contextlib.contextmanager
    def _clear_errors(url: str) -> Iterator[None]:
        from google.api_core import exceptions
        from google.auth.exceptions import GoogleAuthError
        from google.cloud.exceptions import GoogleCloudError
        from requests import RequestException

        try:
            yield
        except exceptions.NotFound:
            raise FileNotFoundError(url) from None
        except (GoogleCloudError, GoogleAuthError, RequestException) as error:
            raise errors.BuildError(f"cannot use {url}: {error}") from None


def _is_direct(server: str) -> bool:
    """Tells whether a server is reached without a proxy or a certificate of the client."""
    from requests.utils import get_environ_proxies, select_proxy

    with_certificate = os.environ.get("GOOGLE_API_USE_CLIENT_CERTIFICATE", "").lower() == "true"
    return not (with_certificate or select_proxy(server, get_environ_proxies(server)))


class _AnyFileSystem:
    """Beam's streams, opened for each read, as threads cannot share them."""

    def __init__(self, file_system: Any) -> None:
        pass

    def describe(self, url: str) -> tuple[int, str]:
        try:
            found = FileSystems.match([url])[0].metadata_list
        except BeamIOError as error:
            raise errors.BuildError(f"cannot use {url}: {_reason(error)}") from None
        if not found:
            raise FileNotFoundError(url)
        return found[0].size_in_bytes, str(found[0].last_updated_in_seconds or "")

    def read(self, url: str, start: int, length: int, mark: Mark = "") -> bytes:
        try:
            with FileSystems.open(url, compression_type=CompressionTypes.UNCOMPRESSED) as stream:
                stream.seek(start)
                return stream.read(length)
        except FileNotFoundError:
            raise
        except (BeamIOError, OSError) as error:
            raise errors.BuildError(f"cannot use {url}: {_reason(error)}") from None

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
            raise errors.BuildError(f"cannot use {url}: {_reason(error)}") from None

    def list(self, folder: str, *, recursive: bool) -> list[RemoteFile]:
        try:
            found = FileSystems.match([_as_folder(folder) + ("**" if recursive else "*")])
        except BeamIOError as error:
            raise errors.BuildError(f"cannot use {folder}: {_reason(error)}") from None
        return [
            RemoteFile(
                file.path,
                file.size_in_bytes,
                int((file.last_updated_in_seconds or 0) * 1_000_000_000),
            )
            for file in found[0].metadata_list
        ]

    def delete(self, urls: Sequence[str]) -> None:
        try:
            FileSystems.delete([url for url in urls if FileSystems.exists(url)])
        except BeamIOError as error:
            raise errors.BuildError(f"cannot use {urls[0]}: {_reason(error)}") from None


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


def _as_folder(url: str) -> str:
    return f"{url.rstrip('/')}/"


def _batches(urls: Sequence[str], size: int) -> Iterator[Sequence[str]]:
    for start in range(0, len(urls), size):
        yield urls[start : start + size]


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
