"""Downloads a file from a storage host, resuming a partial one, with a limit on silence.

A partial file has a marker beside it, `NAME.kaggle-partial`, with the remote file's validator (its
ETag, or else its time) and size. The official client writes the same marker, so each can resume the
other's download. A file without a marker is complete.
"""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

import requests
from tqdm import tqdm

from pipelines import errors
from pipelines.sources.downloads import byte_text, read_json
from tfrecord_io.files import atomic_write, sync_folder

# A broken connection loses the current chunk, so small chunks lose less on a bad connection.
_CHUNK_BYTES = 1 << 18


def is_finished(archive: Path) -> bool:
    """Returns whether an archive is complete: a partial one has a marker file beside it."""
    return archive.is_file() and not marker_path(archive).exists()


def marker_path(archive: Path) -> Path:
    """Returns the path of the marker beside a partial file.

    It holds the remote file's ETag and size, and no secret. The Kaggle client uses the same file.
    """
    return archive.with_name(archive.name + ".kaggle-partial")


def file_size(path: Path) -> int:
    """Returns the size of a file in bytes, or 0 if it does not exist."""
    return path.stat().st_size if path.is_file() else 0


def partial_note(archive: Path) -> str:
    """Returns a sentence that says how much of a download is kept, or "" if nothing is."""
    size = file_size(archive)
    if size == 0:
        return ""
    total = read_json(marker_path(archive)).get("size")
    of_total = f" of {byte_text(total)}" if total else ""
    kept = f"{byte_text(size)}{of_total} are kept in {archive}"
    return f"{kept}: run the same command again to resume."


class WrongAnswerError(requests.RequestException):
    """A storage host answered with something that must not be written into the archive."""


@dataclass(frozen=True, kw_only=True)
class RemoteArchive:
    """An archive on a storage host, as the host described it.

    Attributes:
        url: its signed address, with which anyone can download it for some minutes.
        size: size in bytes, or None if the host does not send it.
        validator: ETag or Last-Modified, which identifies this version; None without both.
    """

    url: str
    size: int | None
    validator: str | None

    @classmethod
    def from_response(cls, response: requests.Response) -> RemoteArchive:
        """Reads the headers of an answer.

        Args:
            response: the storage host's answer.

        Raises:
            WrongAnswerError: if the answer is a web page, for example of a proxy or a login.
        """
        kind = response.headers.get("Content-Type", "").split(";")[0].strip().lower()
        if kind.startswith("text/") or kind in ("application/json", "application/xml"):
            raise WrongAnswerError(
                f"expected a zip archive, got {kind}", request=response.request, response=response
            )
        length = response.headers.get("Content-Length", "")
        return cls(
            url=response.url,
            size=int(length) if length.isdecimal() else None,
            validator=response.headers.get("ETag") or response.headers.get("Last-Modified"),
        )


def transfer(remote: RemoteArchive, archive: Path, bar: tqdm, timeout_s: float) -> None:
    """Downloads what is missing of an archive.

    Bytes on the disk are kept if they belong to the same version; otherwise the download starts
    again. The marker beside the file stays; the caller removes it.

    Args:
        remote: the archive on its host.
        archive: the file to write.
        bar: the progress bar to advance.
        timeout_s: seconds without a byte after which a connection is given up.

    Raises:
        errors.BuildError: if the disk has too little space.
        requests.RequestException: if the host refuses, stops sending or sends something else. The
            file keeps the bytes that arrived.
        OSError: if the disk failed.
    """
    _check_free_space(remote, archive)
    note = {"validator": remote.validator, "size": remote.size}
    is_same = remote.validator is not None and read_json(marker_path(archive)) == note
    start = file_size(archive) if is_same else 0
    bar.total = remote.size
    if is_same and start == remote.size:
        bar.update(start - bar.n)
        return
    headers = {"Accept-Encoding": "identity", "User-Agent": "scan-tfrecords"}
    if start:
        headers |= {"Range": f"bytes={start}-", "If-Range": str(remote.validator)}
    with requests.get(remote.url, headers=headers, stream=True, timeout=timeout_s) as response:
        _check_answer(response, remote, start)
        if response.status_code == 200:  # also from a host that sends no parts
            start = 0
        if not start and file_size(archive):
            # The old bytes go first: the marker of the new version would vouch for them.
            with archive.open("wb") as file:
                os.fsync(file.fileno())
        if not start:
            # The marker is on the disk first: without it, a partial file would count as complete.
            with atomic_write(marker_path(archive)) as marker:
                marker.write(json.dumps(note).encode())
            sync_folder(archive.parent)
        with archive.open("ab" if start else "wb") as file:
            bar.update(start - bar.n)
            for chunk in response.iter_content(_CHUNK_BYTES):
                file.write(chunk)
                bar.update(len(chunk))


def _check_answer(response: requests.Response, remote: RemoteArchive, start: int) -> None:
    """Raises if the body is neither the rest of the archive nor all of it."""
    if response.status_code >= 400:
        raise requests.HTTPError("refused", request=response.request, response=response)
    sent = response.headers.get("Content-Range", "")
    if RemoteArchive.from_response(response).validator != remote.validator:
        problem = "the answer is a different version of the file"
    elif response.status_code == 206 and not sent.startswith(f"bytes {start}-"):
        problem = f"asked for bytes from {start}, got {sent!r}"
    elif response.status_code not in (200, 206):
        problem = f"expected the archive, got HTTP {response.status_code}"
    else:
        return
    raise WrongAnswerError(problem, request=response.request, response=response)


def _check_free_space(remote: RemoteArchive, archive: Path) -> None:
    """Raises before the download if the file system has too little space for the missing bytes.

    The bytes on the disk count as available, because a new download overwrites them.
    """
    missing = (remote.size or 0) - file_size(archive)
    free = shutil.disk_usage(archive.parent).free
    if missing > free:
        lines = [
            f"{archive.parent} has {byte_text(free)} free, but {archive.name} needs "
            f"{byte_text(missing)} more.",
            "Free some space, or choose another folder with --download_dir.",
            partial_note(archive),
        ]
        raise errors.BuildError("\n".join(filter(None, lines)))
