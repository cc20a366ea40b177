"""An archive read in place: zip and tar at random, tar.gz by way of one unpacked tar.

Names, sizes and offsets come from the standard library's own readers; workers read one member by
the offset that the launcher found. A zip stores a CRC-32 of each member. A tar stores none, so the
launcher reads it once from front to back and computes them: names, sizes and times can be the same
for other images.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gzip
import os
import shutil
import tarfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import deflate

from pipelines import errors
from pipelines.sources import zip_members
from pipelines.sources.listing import (
    MAX_FILE_BYTES,
    ImageRef,
    Listing,
    ListingOptions,
    Member,
    list_images,
)
from tfrecord_io import shards

#: A gzip stream that grows more than this is a bomb: JPEGs hardly compress at all. A tar of few
#: and tiny files does, being mostly padding, and does no harm.
_MAX_GZIP_RATIO = 50
_HARMLESS_BYTES = 64 * 1024 * 1024
_COPY_BYTES = 4 * 1024 * 1024


@dataclasses.dataclass(frozen=True)
class ArchiveSource:
    """Images in a .zip, .tar or .tar.gz file on a disk that every worker sees.

    Attributes:
        path: the archive.
        random_access_path: the uncompressed tar to read from, if `path` cannot be read at random.
        kind: what the manifest calls the source.
        dataset: OWNER/NAME, if it came from Kaggle.
    """

    path: Path
    random_access_path: Path | None = None
    kind: str = "archive"
    dataset: str | None = None

    def prepare(self, scratch_dir: Path) -> ArchiveSource:
        """Unpacks a gzip stream once into `scratch_dir`; other archives are read as they are.

        Raises:
            errors.UserError: if the file is not there, damaged, or there is no room.
        """
        if not self.path.is_file():
            raise errors.UserError(f"--input {self.path} is no file")
        if not self.must_be_unpacked:
            return self
        mark = "-".join(str(value) for value in _describe_gzip(self.path).values())
        unpacked = scratch_dir / f"{self.path.name}.{mark}.tar"
        if not unpacked.exists():
            scratch_dir.mkdir(parents=True, exist_ok=True)
            _gunzip(self.path, unpacked)
        return dataclasses.replace(self, random_access_path=unpacked)

    def list(self, options: ListingOptions) -> Listing:
        members = self._zip_members() if self.is_zip else _tar_members(self._data_path, self.path)
        return list_images(members, options, lambda a, b: a.version == b.version)

    def _zip_members(self) -> Iterator[Member]:
        with self.path.open("rb") as file:
            yield from zip_members.list_members(file, self.path.stat().st_size, str(self.path))

    @property
    def must_be_unpacked(self) -> bool:
        """Whether the file must be unpacked before its members can be listed and read."""
        return self.path.is_file() and _start(self.path).startswith(b"\x1f\x8b")

    @property
    def _data_path(self) -> Path:
        return self.random_access_path or self.path

    @property
    def is_zip(self) -> bool:
        """Whether the file is a zip, by its name or its first bytes."""
        # Not `zipfile.is_zipfile`, which takes a tar for a zip if a zip is its last member.
        return self.path.suffix.lower() == ".zip" or _start(self.path) in zip_members.SIGNATURES

    @contextlib.contextmanager
    def open(self) -> Iterator[_ZipReader | _TarReader]:
        try:
            descriptor = os.open(self._data_path, os.O_RDONLY)
        except OSError as error:
            raise errors.BuildError(
                f"cannot open {self._data_path} ({error.strerror}); every worker must see it"
            ) from None
        try:
            yield (
                _ZipReader(descriptor) if self.is_zip else _TarReader(descriptor, str(self.path))
            )
        finally:
            os.close(descriptor)

    def describe(self) -> dict[str, Any]:
        facts: dict[str, Any] = {"kind": self.kind, "name": self.path.name}
        if self.must_be_unpacked:
            facts["gzip"] = _describe_gzip(self.path)
        return facts | ({"dataset": self.dataset} if self.dataset else {})


@dataclasses.dataclass(frozen=True)
class _Reader:
    descriptor: int

    def announce(self, ref: ImageRef) -> None:
        """Lets the system fetch a member from the disk, where it has a way of being told."""
        if hasattr(os, "posix_fadvise"):
            # What cannot be had, a place behind the end for instance, the reading will tell.
            with contextlib.suppress(OSError, OverflowError):
                os.posix_fadvise(
                    self.descriptor, ref.offset, ref.stored_size, os.POSIX_FADV_WILLNEED
                )


class _ZipReader(_Reader):
    def read(self, ref: ImageRef) -> bytes:
        return zip_members.read_member(
            lambda start, length: os.pread(self.descriptor, length, start), ref
        )


@dataclasses.dataclass(frozen=True)
class _TarReader(_Reader):
    shown: str

    def read(self, ref: ImageRef) -> bytes:
        data = os.pread(self.descriptor, ref.size, ref.offset)
        if len(data) != ref.size or deflate.crc32(data) != ref.version:
            raise errors.BuildError(
                f"{self.shown} changed since the build began ({ref.source_path} is no longer what "
                "it was); start again with --overwrite"
            )
        return data


def _tar_members(data_path: Path, path: Path) -> Iterator[Member]:
    try:
        with tarfile.open(data_path, "r:") as archive, data_path.open("rb") as file:
            for info in archive:
                if archive.offset <= info.offset:
                    raise tarfile.ReadError("a header that leads back to itself")
                if not info.isdir():
                    problem = _tar_problem(info)
                    # What is too large to be an image will not be read.
                    is_read = problem is None and info.size <= MAX_FILE_BYTES
                    crc = _crc32(file, info.offset_data, info.size) if is_read else 0
                    yield Member(info.name, info.size, info.offset_data, info.size, crc, problem)
                # The library remembers every member it has seen; the listing needs none twice.
                archive.members.clear()
            _check_tar_end(data_path, archive.offset)
    except (tarfile.TarError, EOFError, OSError, ValueError, OverflowError) as error:
        raise errors.UserError(
            f"{path} is not a complete tar archive ({error}); download or copy it again"
        ) from None


def _crc32(file: IO[bytes], start: int, length: int) -> int:
    file.seek(start)
    crc = 0
    while length and (block := file.read(min(length, _COPY_BYTES))):
        crc = deflate.crc32(block, crc)
        length -= len(block)
    return crc


def _check_tar_end(data_path: Path, end: int) -> None:
    """Refuses a tar that is cut off, damaged between two members, or followed by another one.

    The library takes a block of zeros for the end of the archive, and a damaged header, too. What
    follows the end must be zeros, which pad the file.
    """
    with data_path.open("rb") as file:
        file.seek(end)
        block = file.read(tarfile.BLOCKSIZE)
        if len(block) < tarfile.BLOCKSIZE:
            raise tarfile.ReadError("it is cut off: it has no end mark")
        if block.strip(b"\0"):
            raise tarfile.ReadError(f"damaged at byte {end:,}")
        while block := file.read(_COPY_BYTES):
            if block.strip(b"\0"):
                raise tarfile.ReadError(
                    f"it ends at byte {end:,} and other data follow; if archives were joined, "
                    "unpack them one by one and give the folder"
                )


def _tar_problem(info: tarfile.TarInfo) -> tuple[str, str] | None:
    if info.size < 0:
        return "unreadable_member", "its size is negative"
    if info.issym() or info.islnk():
        return "link", f"a link to {info.linkname}"
    if not info.isreg() or info.sparse:
        return "not_a_file", "a device, pipe or sparse file"
    return None


def _start(path: Path) -> bytes:
    """Returns the first four bytes of a file, by which its kind is known."""
    with path.open("rb") as file:
        return file.read(4)


def _describe_gzip(path: Path) -> dict[str, Any]:
    """Returns what tells a gzip file from another without unpacking it.

    Its last eight bytes are a CRC-32 of what was packed, and its length modulo 2**32 (RFC 1952).
    bgzip writes many streams, of which the last is empty: there the file's time has to tell.
    """
    with path.open("rb") as file:
        num_bytes = file.seek(0, os.SEEK_END)
        file.seek(max(num_bytes - 8, 0))
        trailer = file.read()
        facts: dict[str, Any] = {"bytes": num_bytes, "trailer": trailer.hex()}
        if not any(trailer):
            facts["mtime_ns"] = os.fstat(file.fileno()).st_mtime_ns
    return facts


def _gunzip(path: Path, unpacked: Path) -> None:
    """A gzip stream has no places to start from, so random reads need it unpacked, once."""
    limit = max(path.stat().st_size * _MAX_GZIP_RATIO, _HARMLESS_BYTES)
    written = 0
    try:
        with gzip.open(path) as stream, shards.atomic_write(unpacked) as file:
            while block := stream.read(_COPY_BYTES):
                written += len(block)
                if written > limit:
                    raise errors.UserError(
                        f"{path} unpacks to more than {_MAX_GZIP_RATIO} times its size; "
                        "that is no archive of images"
                    )
                if shutil.disk_usage(unpacked.parent).free < len(block):
                    raise errors.UserError(
                        f"no room to unpack {path} beside the output; free some space or give "
                        "a .tar or .zip, which are read in place"
                    )
                file.write(block)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise errors.UserError(
            f"{path} is not a complete gzip file ({error}); download or copy it again"
        ) from None
