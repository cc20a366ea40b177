"""Tars that are made once of inputs that cannot be read in any order: a tar.gz, or rows."""

from __future__ import annotations

import functools
import gzip
import hashlib
import os
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

from pipelines import errors
from tfrecord_io.stores.files import atomic_write

# What unpacks to a larger multiple is taken for a bomb, because JPEGs hardly compress.
# A tar of a few tiny files does compress, being mostly padding, so a small result is accepted.
_MAX_RATIO = 50
_HARMLESS_BYTES = 64 * 1024 * 1024
_BLOCK_BYTES = 4 * 1024 * 1024


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


def gunzipped(path: Path, scratch_dir: Path) -> tuple[Path, dict[str, Any]]:
    """Unpacks a tar.gz, unless that was done; returns the tar, and what identifies the version."""
    # The last eight bytes are the CRC-32 and the length of the unpacked data (RFC 1952).
    size, changed = version_of(path)
    with path.open("rb") as file:
        file.seek(max(size - 8, 0))
        trailer = file.read()
    facts: dict[str, Any] = {"bytes": size, "trailer": trailer.hex()}
    if not any(trailer):  # bgzip ends a file with an empty stream
        facts["mtime_ns"] = changed
    write = functools.partial(_gunzip, path)
    return make_tar(scratch_dir, path, tuple(facts.values()), write, size), facts


def _gunzip(path: Path, file: IO[bytes], budget: Budget) -> None:
    """Unpacks a gzip stream, because a stream can be read only from its beginning."""
    for block in _gzip_blocks(path):
        budget.take(len(block))
        file.write(block)


def _gzip_blocks(path: Path) -> Iterator[bytes]:
    try:
        with errors.clear_read_errors(str(path)), gzip.open(path) as stream:
            while block := stream.read(_BLOCK_BYTES):
                yield block
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise errors.UserError(
            f"{path} is not a complete gzip file ({error}); download or copy it again"
        ) from None
