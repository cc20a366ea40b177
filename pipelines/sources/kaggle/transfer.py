"""Brings a file from a storage host to the disk: resumed, checked, never longer silent than said.

A partial file has a note beside it, `NAME.kaggle-partial`, with the remote object's validator (its
ETag, or else its time) and size. The official client writes the same note, so each resumes what
the other began. A file without a note is complete.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import requests
from tqdm import tqdm

from pipelines.sources.downloads import (
    DownloadError,
    byte_text,
    file_size,
    marker_path,
    partial_note,
    read_json,
)

# A cut connection loses the chunk that it cut, so small ones bring a bad line further.
_CHUNK_BYTES = 1 << 18


class WrongAnswerError(requests.RequestException):
    """A storage host answered with something that must not be written into the archive."""


@dataclass(frozen=True, kw_only=True)
class RemoteArchive:
    """An archive on a storage host, as the host described it.

    Attributes:
        url: its address, signed: whoever has it can download with it, for some minutes.
        size: bytes, or None if the host did not say.
        validator: ETag or Last-Modified, which name this version; None if there is neither.
        accepts_ranges: whether a part of it can be asked for.
    """

    url: str
    size: int | None
    validator: str | None
    accepts_ranges: bool

    @classmethod
    def from_response(cls, response: requests.Response) -> RemoteArchive:
        """Reads an answer's headers.

        Raises:
            WrongAnswerError: if it is a page: a company's proxy or a hotel's login, say.
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
            accepts_ranges=response.headers.get("Accept-Ranges") == "bytes",
        )


def transfer(remote: RemoteArchive, archive: Path, bar: tqdm, timeout_s: float) -> None:
    """Downloads what is missing of an archive.

    Bytes on the disk are kept if they belong to this very version; otherwise it begins anew. The
    note beside the file stays; the caller removes it.

    Args:
        remote: where it is.
        archive: the file to write.
        bar: follows the file's bytes.
        timeout_s: seconds without a byte after which a connection counts as dead.

    Raises:
        DownloadError: The disk has no room for it.
        requests.RequestException: The host refused, fell silent, was cut off or sent something
            else. The file keeps the bytes that it has.
        OSError: The disk failed.
    """
    _check_free_space(remote, archive)
    note = {"validator": remote.validator, "size": remote.size}
    is_same = remote.validator is not None and read_json(marker_path(archive)) == note
    start = file_size(archive) if is_same and remote.accepts_ranges else 0
    bar.total = remote.size
    if is_same and remote.size is not None and file_size(archive) == remote.size:
        bar.update(remote.size - bar.n)
        return
    headers = {"Accept-Encoding": "identity", "User-Agent": "scan-tfrecords"}
    if start:
        headers |= {"Range": f"bytes={start}-", "If-Range": str(remote.validator)}
    with requests.get(remote.url, headers=headers, stream=True, timeout=timeout_s) as response:
        _check_answer(response, remote, start)
        if response.status_code == 200:
            start = 0
        # First the note: without one, a file that was cut off would pass for complete.
        marker_path(archive).write_text(json.dumps(note), encoding="utf-8")
        with archive.open("ab" if start else "wb") as file:
            bar.update(start - bar.n)
            for chunk in response.iter_content(_CHUNK_BYTES):
                file.write(chunk)
                bar.update(len(chunk))


def _check_answer(response: requests.Response, remote: RemoteArchive, start: int) -> None:
    """Raises where the body is not the rest of the archive, or all of it."""
    if response.status_code >= 400:
        raise requests.HTTPError("refused", request=response.request, response=response)
    if RemoteArchive.from_response(response).validator != remote.validator:
        problem = "the answer is of another object"
    elif response.status_code == 206 and not _begins_at(response.headers, start):
        problem = f"asked for bytes from {start}, got {response.headers.get('Content-Range')!r}"
    elif response.status_code not in (200, 206):
        problem = f"expected the archive, got HTTP {response.status_code}"
    else:
        return
    raise WrongAnswerError(problem, request=response.request, response=response)


def _begins_at(headers: Mapping[str, str], start: int) -> bool:
    return re.match(rf"bytes {start}-", headers.get("Content-Range", "")) is not None


def _check_free_space(remote: RemoteArchive, archive: Path) -> None:
    """Raises before the first byte where the file system has no room for the missing ones.

    Whether the download resumes or starts anew, the bytes on disk are part of the room.
    """
    missing = (remote.size or 0) - file_size(archive)
    free = shutil.disk_usage(archive.parent).free
    if missing > free:
        raise DownloadError(
            f"{archive.parent} has {byte_text(free)} free, but {archive.name} needs "
            f"{byte_text(missing)} more.\n"
            "Free some space, or choose another folder with --download_dir.\n"
            f"{partial_note(archive)}".rstrip()
        )
