"""An archive read in place: zip and tar at random, tar.gz by way of one unpacked tar.

Names, sizes and offsets come from the standard library's own readers. What is written here is
only the worker's part, which reads one member by the offset the launcher found: opening a zip of
170,000 members anew in every worker costs a second and a hundred megabytes each.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gzip
import os
import shutil
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pipelines import errors
from pipelines.sources.listing import ImageRef, Listing, ListingOptions, Member, list_images
from tfrecord_io import shards
from tfrecord_io.preprocess import Reject

# APPNOTE.TXT 4.3.7: a local header is 30 bytes, then the name and an extra field, whose lengths
# stand at its end.
_ZIP_HEADER_LENGTH = 30
_ZIP_HEADER_SIGNATURE = b"PK\x03\x04"
_ENCRYPTED = 0x1

#: A gzip stream that grows more than this is a bomb: JPEGs hardly compress at all.
_MAX_GZIP_RATIO = 50
_COPY_BYTES = 4 * 1024 * 1024


@dataclasses.dataclass(frozen=True)
class ArchiveSource:
    """Images in a .zip, .tar or .tar.gz file on a disk that every worker sees.

    Attributes:
        path: the archive.
        random_access_path: the uncompressed tar to read from, if `path` cannot be read at random.
        kind: what the manifest calls the source.
    """

    path: Path
    random_access_path: Path | None = None
    kind: str = "archive"

    def prepare(self, scratch_dir: Path) -> ArchiveSource:
        """Unpacks a gzip stream once into `scratch_dir`; other archives are read as they are.

        Raises:
            errors.UserError: if the file is not there, damaged, or there is no room.
        """
        if not self.path.is_file():
            raise errors.UserError(f"--input {self.path} is no file")
        if not _is_gzip(self.path):
            return self
        found = self.path.stat()
        name = f"{self.path.name}.{found.st_size}.{found.st_mtime_ns}.tar"
        unpacked = scratch_dir / name
        if not unpacked.exists():
            _gunzip(self.path, unpacked)
        return dataclasses.replace(self, random_access_path=unpacked)

    def list(self, options: ListingOptions) -> Listing:
        if self._is_zip:
            return list_images(
                _zip_members(self.path), options, lambda a, b: a.version == b.version
            )
        with self.open() as reader:
            return list_images(
                _tar_members(self._data_path, self.path),
                options,
                lambda a, b: reader.read(a) == reader.read(b),
            )

    @property
    def _data_path(self) -> Path:
        return self.random_access_path or self.path

    @property
    def _is_zip(self) -> bool:
        # An empty or truncated zip still starts like one, and its error should speak of a zip.
        return self.path.suffix.lower() == ".zip" or zipfile.is_zipfile(self.path)

    @contextlib.contextmanager
    def open(self) -> Iterator[_ZipReader | _TarReader]:
        try:
            descriptor = os.open(self._data_path, os.O_RDONLY)
        except OSError as error:
            raise errors.BuildError(
                f"cannot open {self._data_path} ({error.strerror}); every worker must see it"
            ) from None
        try:
            yield _ZipReader(descriptor) if self._is_zip else _TarReader(descriptor)
        finally:
            os.close(descriptor)

    def describe(self) -> dict[str, Any]:
        return {"kind": self.kind, "name": self.path.name}


@dataclasses.dataclass(frozen=True)
class _ZipReader:
    descriptor: int

    def read(self, ref: ImageRef) -> bytes:
        # One system call a member: the local header's variable part is guessed to be short.
        guess = len(ref.source_path.encode()) + 64
        wanted = _ZIP_HEADER_LENGTH + guess + ref.stored_size
        block = os.pread(self.descriptor, wanted, ref.offset)
        if len(block) < _ZIP_HEADER_LENGTH or not block.startswith(_ZIP_HEADER_SIGNATURE):
            raise Reject("unreadable_member", "the archive has no member where its index says")
        method = int.from_bytes(block[8:10], "little")
        start = (
            _ZIP_HEADER_LENGTH
            + int.from_bytes(block[26:28], "little")
            + int.from_bytes(block[28:30], "little")
        )
        stored = block[start : start + ref.stored_size]
        if len(stored) < ref.stored_size:
            stored = os.pread(self.descriptor, ref.stored_size, ref.offset + start)
        data = _inflate(stored, method, ref.size)
        if len(data) != ref.size or zlib.crc32(data) != ref.version:
            raise Reject("unreadable_member", "damaged in the archive: its CRC-32 does not fit")
        return data


@dataclasses.dataclass(frozen=True)
class _TarReader:
    descriptor: int

    def read(self, ref: ImageRef) -> bytes:
        data = os.pread(self.descriptor, ref.size, ref.offset)
        if len(data) != ref.size:
            raise Reject("unreadable_member", "the archive ends before the member does")
        return data


def _inflate(stored: bytes, method: int, size: int) -> bytes:
    """Undoes a member's compression; a bomb is cut off one byte after its declared size."""
    if method == zipfile.ZIP_STORED:
        return stored
    if method != zipfile.ZIP_DEFLATED:
        raise Reject("unreadable_member", f"compression method {method} is not supported")
    try:
        return zlib.decompressobj(-zlib.MAX_WBITS).decompress(stored, size + 1)
    except zlib.error as error:
        raise Reject("unreadable_member", f"damaged in the archive: {error}") from None


def _zip_members(path: Path) -> Iterator[Member]:
    try:
        with zipfile.ZipFile(path) as archive:
            infos = archive.infolist()
    except (zipfile.BadZipFile, OSError, EOFError, ValueError, NotImplementedError) as error:
        raise errors.UserError(
            f"{path} is not a complete zip archive ({error}); download or copy it again"
        ) from None
    for info in infos:
        if not info.is_dir():
            yield Member(
                info.filename,
                info.file_size,
                info.header_offset,
                info.compress_size,
                info.CRC,
                _zip_problem(info),
            )


def _zip_problem(info: zipfile.ZipInfo) -> tuple[str, str] | None:
    if info.flag_bits & _ENCRYPTED:
        return "encrypted", "the member is encrypted"
    # The upper half of the attributes is the Unix mode, if the archive was made there.
    if stat.S_ISLNK(info.external_attr >> 16):
        return "link", "a symbolic link"
    return None


def _tar_members(data_path: Path, path: Path) -> Iterator[Member]:
    try:
        with tarfile.open(data_path, "r:") as archive:
            for info in archive:
                if not info.isdir():
                    yield Member(
                        info.name,
                        info.size,
                        info.offset_data,
                        info.size,
                        int(info.mtime),
                        _tar_problem(info),
                    )
                # The library remembers every member it has seen; the listing needs none twice.
                archive.members.clear()
            _check_tar_end(data_path, path, archive.offset)
    except (tarfile.TarError, EOFError, OSError) as error:
        raise errors.UserError(
            f"{path} is not a complete tar archive ({error}); download or copy it again"
        ) from None


def _check_tar_end(data_path: Path, path: Path, end: int) -> None:
    """Refuses a tar that stops at a member's border, which the library takes for its end."""
    if end > data_path.stat().st_size:
        raise errors.UserError(f"{path} is cut off in its last member; download or copy it again")
    with data_path.open("rb") as file:
        file.seek(max(end - 2 * tarfile.BLOCKSIZE, 0))
        if not file.read(tarfile.BLOCKSIZE).strip(b"\0") == b"" and not file.read(1):
            raise errors.UserError(f"{path} has no end mark: it is cut off; copy it again")


def _tar_problem(info: tarfile.TarInfo) -> tuple[str, str] | None:
    if info.issym() or info.islnk():
        return "link", f"a link to {info.linkname}"
    if not info.isreg() or info.sparse:
        return "not_a_file", "a device, pipe or sparse file"
    return None


def _is_gzip(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(2) == b"\x1f\x8b"


def _gunzip(path: Path, unpacked: Path) -> None:
    """A gzip stream has no places to start from, so random reads need it unpacked, once."""
    limit = path.stat().st_size * _MAX_GZIP_RATIO
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
