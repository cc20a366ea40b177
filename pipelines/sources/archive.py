"""Images in an archive: a zip or tar is read in place, a tar.gz is first unpacked to a tar.

The launcher lists the members once, and a worker reads each at the offset that was found: opening a
zip of 170,000 members would take a second and a hundred megabytes in each worker. A tar has no
checksums, so the launcher computes the CRC-32 of each member, as a zip has.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import gzip
import hashlib
import io
import mmap
import os
import shlex
import stat
import tarfile
import threading
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any, BinaryIO

import deflate

from pipelines import errors
from pipelines.sources.source import MAX_FILE_BYTES, Member, Reader, Source
from tfrecord_io.decoding.rejects import Reject
from tfrecord_io.decoding.unread import START_BYTES, what_is
from tfrecord_io.stores import archives
from tfrecord_io.stores.files import announce, atomic_write
from tfrecord_io.stores.range_file import RangeFile
from tfrecord_io.terminal.printing import counted

# What unpacks to a larger multiple is taken for a bomb, because JPEGs hardly compress.
# A tar of a few tiny files does compress, being mostly padding, so a small result is accepted.
_MAX_RATIO = 50
_HARMLESS_BYTES = 64 * 1024 * 1024
_COPY_BYTES = 4 * 1024 * 1024
_ENCRYPTED = 0x1
_GZIP = b"\x1f\x8b"


@dataclasses.dataclass(frozen=True)
class ArchiveSource(Source):
    """Images in a .zip, .tar or .tar.gz file on a disk that every worker can read.

    Attributes:
        path: the archive, or the tar that was unpacked from it.
        facts: other entries of `describe`: its kind, if not "archive", and Kaggle's dataset.
        packed: the tar.gz of which `path` was unpacked.
        version: size in bytes and time of change in ns of the file that is listed and read.
    """

    path: Path
    facts: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    packed: Path | None = None
    version: tuple[int, int] | None = None

    def prepare(self, scratch_dir: Path) -> ArchiveSource:
        """Unpacks a tar.gz, unless it is already there."""
        source = self
        if _start(self.path).startswith(_GZIP):
            # The last eight bytes are the CRC-32 and the length of the unpacked data (RFC 1952).
            size, changed = version_of(self.path)
            with self.path.open("rb") as file:
                file.seek(max(size - 8, 0))
                trailer = file.read()
            facts: dict[str, Any] = {"bytes": size, "trailer": trailer.hex()}
            if not any(trailer):  # bgzip ends a file with an empty stream
                facts["mtime_ns"] = changed
            mark = tuple(facts.values())
            write = functools.partial(_gunzip, self.path)
            unpacked = make_tar(scratch_dir, self.path, mark, write, size)
            source = ArchiveSource(unpacked, {"gzip": facts, **self.facts}, self.path)
        return dataclasses.replace(source, version=version_of(source.path))

    def members(self) -> Iterator[Member]:
        if not self.is_zip:
            yield from _tar_members(self.path, self.packed or self.path)
            return
        with self.path.open("rb") as file:
            yield from zip_members(file, str(self.path))

    @property
    def is_zip(self) -> bool:
        """Whether the file is a zip, by its name or its first bytes."""
        # `zipfile.is_zipfile` would take a tar for a zip if the tar's last member is a zip.
        return self.path.suffix.lower() == ".zip" or _start(self.path) in archives.SIGNATURES

    @contextlib.contextmanager
    def open(self) -> Iterator[ArchiveReader]:
        with contextlib.ExitStack() as stack:
            with errors.clear_read_errors(f"{self.path} (every worker must be able to read it)"):
                descriptor = stack.enter_context(self.path.open("rb")).fileno()
            version, shown = self.version or version_of(descriptor), self.packed or self.path
            yield _LocalReader(descriptor, version, str(shown), is_zip=self.is_zip)

    def describe(self) -> dict[str, Any]:
        return {"kind": "archive", "name": (self.packed or self.path).name, **self.facts}


class ArchiveReader(Reader):
    """Reads the members of a zip or tar of `size` bytes.

    `read_at` returns bytes of the archive itself, by a place and a length that exist.
    """

    def __init__(
        self, read_at: Callable[[int, int], bytes | memoryview], size: int, *, is_zip: bool
    ) -> None:
        self._read_existing = read_at
        self._size = size
        self._is_zip = is_zip
        self._checked: set[int] = set()
        self._locks: dict[int, threading.Lock] = {}

    def _read_at(self, start: int, length: int) -> memoryview:
        # Some stores refuse a range that ends beyond the file.
        length = min(length, self._size - start)
        return memoryview(self._read_existing(start, length) if length > 0 else b"")

    def require_unchanged(self) -> None:
        """Raises `errors.BuildError` if the archive is not what was listed."""

    def read(self, member: Member) -> bytes:
        """Returns a member's content, in one read unless its header is unusually long."""
        method, _, stored = self._read_stored(member, member.stored_size)
        if method == zipfile.ZIP_STORED:
            data = bytes(stored)
        elif method == zipfile.ZIP_DEFLATED:
            try:  # in no more memory than its declared size
                data = bytes(deflate.deflate_decompress(stored, member.size))
            except deflate.DeflateError:
                crc = deflate.crc32(stored)
                raise self._damaged(
                    f"its stored bytes, with the CRC-32 {crc:08x}, do not inflate to {member.size} "
                    "bytes"
                ) from None
        else:
            raise Reject("unreadable_member", f"compression method {method} is not supported")
        crc = deflate.crc32(data)
        if len(data) != member.size or crc != member.version:
            raise self._damaged(f"its CRC-32 is {crc:08x} instead of {member.version:08x}")
        return data

    def read_start(self, member: Member, length: int) -> bytes:
        """Returns the first bytes of a member, without checking them; fewer if it is damaged."""
        method, _, stored = self._read_stored(member, min(member.stored_size, length))
        if method != zipfile.ZIP_DEFLATED:
            return bytes(stored)
        with contextlib.suppress(zlib.error):
            return zlib.decompressobj(-zlib.MAX_WBITS).decompress(stored, length)
        return b""

    def open(self, member: Member) -> BinaryIO:
        """Opens a member; an uncompressed one is read as a whole once, to compare its checksum."""
        method, start, _ = self._read_stored(member, 0)
        if method != zipfile.ZIP_STORED:
            return super().open(member)
        with self._locks.setdefault(member.offset, threading.Lock()):
            if member.offset not in self._checked:
                self.read(member)
                self._checked.add(member.offset)
        return io.BufferedReader(RangeFile(self._read_at, member.size, member.offset + start))

    def _read_stored(self, member: Member, length: int) -> tuple[int, int, memoryview]:
        """Returns a member's compression method, and the start and first bytes of its content.

        The start counts from the member's offset, where a zip has a header and a tar the content.
        """
        if not self._is_zip:
            return zipfile.ZIP_STORED, 0, self._read_at(member.offset, length)
        # A guess at the length of the local header's variable part, so that one read is enough.
        guess = len(member.name.encode()) + 64
        header = archives.HEADER
        block = self._read_at(member.offset, header.size + guess + length)
        if len(block) < header.size or block[:4] != archives.HEADER_SIGNATURE:
            wrong = f"bytes with the CRC-32 {deflate.crc32(block):08x}"
            raise self._damaged(f"{wrong} are where its index says that it begins")
        method = int.from_bytes(block[8:10], "little")
        start = header.size + sum(header.unpack_from(block))
        stored = block[start : start + length]
        if len(stored) < length:
            stored = self._read_at(member.offset + start, length)
        return method, start, stored

    def _damaged(self, how: str) -> Reject:
        # The checksums in `how` show whether the same was read twice.
        self.require_unchanged()
        return Reject("unreadable_member", f"damaged in the archive: {how}")


class _LocalReader(ArchiveReader):
    """Reads an archive that is an open file of this version; errors call it `shown`."""

    def __init__(
        self, descriptor: int, version: tuple[int, int], shown: str, *, is_zip: bool
    ) -> None:
        super().__init__(self._pread, version[0], is_zip=is_zip)
        self._descriptor = descriptor
        self._version = version
        self._shown = shown

    def _pread(self, start: int, length: int) -> bytes:
        with errors.clear_read_errors(self._shown):
            data = os.pread(self._descriptor, length, start)
        if len(data) != length:
            raise errors.changed(self._shown)
        return data

    def require_unchanged(self) -> None:
        if version_of(self._descriptor) != self._version:
            raise errors.changed(self._shown)

    def announce(self, member: Member) -> None:
        # An invalid offset is reported when the member is read.
        with contextlib.suppress(OSError, OverflowError):
            # A page more, because a zip has a header before the content: a page that is not
            # announced would be waited for behind all that are.
            announce(self._descriptor, member.offset, member.stored_size + mmap.PAGESIZE)


def zip_members(file: IO[bytes], shown: str) -> Iterator[Member]:
    """Yields every file of a zip, which an error calls `shown`; see `archives.open_zip`."""
    try:
        with errors.clear_read_errors(shown):
            infos = archives.open_zip(file).infolist()
    except (zipfile.BadZipFile, OSError, EOFError, ValueError, NotImplementedError) as error:
        raise _incomplete(f"{shown} is not a complete zip archive", error) from None
    if unknown := [info.filename for info in infos if archives.name_of(info) is None]:
        name = shown.rpartition("/")[2]
        raise errors.UserError(
            f"{shown} does not say how the names of {counted(len(unknown), 'member')} are encoded, "
            f"such as {unknown[0]!r}, and they are not UTF-8. Unpack it with the program that "
            "packed it, or in the encoding that makes the names right (cp437, cp850, cp1252, gbk, "
            f"shift_jis): python -m zipfile --metadata-encoding cp437 -e {shlex.quote(name)} "
            "FOLDER; then give the folder as --input"
        )
    for info in infos:
        # `ZipInfo.is_dir` fails on an empty name. A damaged name can end like a folder's.
        if info.file_size or not info.filename.endswith("/"):
            problem = None
            if info.flag_bits & _ENCRYPTED:
                problem = "encrypted", "the member is encrypted"
            # The upper half of the attributes is the file mode if the archive was made on Unix.
            elif stat.S_ISLNK(info.external_attr >> 16):
                problem = "link", "a symbolic link"
            place = info.header_offset, info.compress_size
            yield Member(info.filename, info.file_size, *place, info.CRC, problem)


def _tar_members(data_path: Path, path: Path) -> Iterator[Member]:
    try:
        with (
            errors.clear_read_errors(str(path)),
            tarfile.open(data_path, "r:") as archive,
            data_path.open("rb") as file,
        ):
            for info in archive:
                if archive.offset <= info.offset:
                    raise tarfile.ReadError("a header points back to itself")
                if not info.isdir():
                    problem = _tar_problem(info)
                    # A file that is too large to be an image is not read.
                    is_read = problem is None and info.size <= MAX_FILE_BYTES
                    crc = _crc32(file, info.offset_data, info.size) if is_read else 0
                    yield Member(info.name, info.size, info.offset_data, info.size, crc, problem)
                # tarfile keeps every member in memory, and none is needed again.
                archive.members.clear()
            archives.check_tar_end(file, archive.offset)
    except (tarfile.TarError, EOFError, OSError, ValueError, OverflowError) as error:
        with path.open("rb") as file:
            start = file.read(START_BYTES)
        is_tar = b"ustar" in start or start.startswith(_GZIP)
        if (kind := what_is("", start)) and not is_tar:  # such as a .tar.xz
            raise errors.UserError(f"cannot read {path} as a tar archive; it is {kind}") from None
        raise _incomplete(f"{path} is not a complete tar archive", error) from None


def _crc32(file: IO[bytes], start: int, length: int) -> int:
    file.seek(start)
    crc = 0
    while length and (block := file.read(min(length, _COPY_BYTES))):
        crc = deflate.crc32(block, crc)
        length -= len(block)
    return crc


def _tar_problem(info: tarfile.TarInfo) -> tuple[str, str] | None:
    if info.size < 0:
        return "unreadable_member", "its size is negative"
    if info.issym() or info.islnk():
        return "link", f"a link to {info.linkname}"
    if not info.isreg() or info.sparse:
        return "not_a_file", "a device, pipe or sparse file"
    return None


def _incomplete(what: str, error: Exception) -> errors.UserError:
    return errors.UserError(f"{what} ({error}); download or copy it again")


def _start(path: Path) -> bytes:
    """Returns the first four bytes of a file, which identify its format."""
    with errors.clear_read_errors(str(path)), path.open("rb") as file:
        return file.read(4)


def version_of(file: Path | int) -> tuple[int, int]:
    """Returns the size in bytes and the time of change in ns of a file or descriptor."""
    status = os.stat(file)  # noqa: PTH116 - a Path has no descriptor
    return status.st_size, status.st_mtime_ns


class Budget:
    """What an input of `num_bytes` may unpack to; errors name its path."""

    def __init__(self, path: Path, num_bytes: int) -> None:
        self._path, self._left = path, max(num_bytes * _MAX_RATIO, _HARMLESS_BYTES)

    def take(self, num_bytes: int) -> None:
        """Counts bytes that are going to be unpacked; raises `errors.UserError` if too many."""
        self._left -= num_bytes
        if self._left < 0:
            raise errors.UserError(
                f"{self._path} unpacks to more than {_MAX_RATIO} times its size, which neither "
                "images nor tables do"
            )


def make_tar(
    scratch_dir: Path,
    path: Path,
    mark: object,
    write: Callable[[IO[bytes], Budget], None],
    num_bytes: int,
) -> Path:
    """Returns a tar with the images of an input, which is written unless it is already there.

    Args:
        scratch_dir: a local folder.
        path: the input.
        mark: what identifies the input's version.
        write: writes the tar into an open file, and takes its bytes from a budget first.
        num_bytes: size of the input.
    """
    digest = hashlib.blake2b(repr(mark).encode(), digest_size=8).hexdigest()
    tar = scratch_dir / f"{path.name}.{digest}.tar"
    if not tar.exists():
        scratch_dir.mkdir(0o700, parents=True, exist_ok=True)
        shown = f"{tar}, into which {path.name} is unpacked; a .zip or .tar is read in place"
        with errors.clear_write_errors(shown), atomic_write(tar) as file:
            write(file, Budget(path, num_bytes))
    return tar


def _gunzip(path: Path, file: IO[bytes], budget: Budget) -> None:
    """Unpacks a gzip stream, because a stream can be read only from its beginning."""
    for block in _gzip_blocks(path):
        budget.take(len(block))
        file.write(block)


def _gzip_blocks(path: Path) -> Iterator[bytes]:
    try:
        with errors.clear_read_errors(str(path)), gzip.open(path) as stream:
            while block := stream.read(_COPY_BYTES):
                yield block
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise _incomplete(f"{path} is not a complete gzip file", error) from None
