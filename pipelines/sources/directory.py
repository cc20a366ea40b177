"""A folder of images: SPLIT/CLASS/files or CLASS/files."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import filecmp
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pipelines import errors
from pipelines.sources.listing import ImageRef, Listing, ListingOptions, Member, list_images
from tfrecord_io.preprocess import Reject

# What the system says of one path: that it may not be read, leads nowhere, or is no file.
_ERRORS_OF_A_FILE = frozenset(
    {
        errno.EACCES,
        errno.EPERM,
        errno.ENOENT,
        errno.ENOTDIR,
        errno.EISDIR,
        errno.ELOOP,
        errno.ENAMETOOLONG,
    }
)


@dataclasses.dataclass(frozen=True)
class DirectorySource:
    """Images in a folder on a disk that every worker sees.

    Attributes:
        directory: the folder.
        kind: what the manifest calls the source.
    """

    directory: Path
    kind: str = "directory"

    def prepare(self, scratch_dir: Path) -> DirectorySource:
        return self

    def list(self, options: ListingOptions) -> Listing:
        if not self.directory.is_dir():
            raise errors.UserError(f"--input {self.directory} is no folder")
        return list_images(_walk(self.directory), options, self._same_content)

    def _same_content(self, a: ImageRef, b: ImageRef) -> bool:
        paths = [self.directory / ref.source_path for ref in (a, b)]
        return filecmp.cmp(*paths, shallow=False)

    @contextlib.contextmanager
    def open(self) -> Iterator[_DirectoryReader]:
        yield _DirectoryReader(self.directory)

    def describe(self) -> dict[str, Any]:
        return {"kind": self.kind, "name": self.directory.name}


@dataclasses.dataclass(frozen=True)
class _DirectoryReader:
    directory: Path

    def read(self, ref: ImageRef) -> bytes:
        path = self.directory / ref.source_path
        try:
            with path.open("rb") as file:
                found = os.fstat(file.fileno())
                if (found.st_size, found.st_mtime_ns) != (ref.size, ref.version):
                    raise errors.BuildError(
                        f"{path} changed since the build began (it had {ref.size:,} bytes, now "
                        f"{found.st_size:,}, or another time); start again with --overwrite"
                    )
                return file.read()
        except FileNotFoundError:
            if not self.directory.is_dir():
                raise errors.BuildError(
                    f"{self.directory} is not there on this worker; every worker must see it"
                ) from None
            raise errors.BuildError(
                f"{path} is gone since the build began; start again with --overwrite"
            ) from None
        except OSError as error:
            raise _unreadable(error, str(path)) from None


def _unreadable(error: OSError, shown: str) -> Reject | errors.BuildError:
    """Returns a reject for an error that lies in the file, and an end of the build for others.

    An exhausted machine, a stale mount or a failing disk would otherwise cost images that are
    good, and a resumed build would keep them out.
    """
    if error.errno in _ERRORS_OF_A_FILE:
        return Reject("unreadable_member", error.strerror or str(error))
    return errors.BuildError(
        f"cannot read {shown}: {error.strerror or error}. Look after the disk or the machine, then "
        "run the same command again to go on"
    )


def _walk(directory: Path) -> Iterator[Member]:
    """Yields every file below a folder; links to folders are not followed but named."""

    def fail(error: OSError) -> None:
        # os.walk skips what it may not read; a skipped folder would be images lost in silence.
        raise errors.UserError(f"cannot list {error.filename}: {error.strerror}")

    for folder, folders, files in os.walk(directory, onerror=fail):
        prefix = Path(folder).relative_to(directory).as_posix()
        prefix = "" if prefix == "." else f"{prefix}/"
        folders.sort()
        for name in folders:
            if os.path.islink(os.path.join(folder, name)):  # noqa: PTH114, PTH118 - hot loop
                yield Member(prefix + name, 0, problem=("link", "a link to a folder"))
        for name in sorted(files):
            yield _member(prefix + name, os.path.join(folder, name))  # noqa: PTH118


def _member(name: str, path: str) -> Member:
    try:
        found = os.stat(path)  # noqa: PTH116 - ten million of them; follows links to files
    except OSError as error:
        problem = _unreadable(error, path)
        if isinstance(problem, Reject):
            return Member(name, 0, problem=(problem.reason, problem.detail))
        raise problem from None
    if not stat.S_ISREG(found.st_mode):
        return Member(name, 0, problem=("not_a_file", "a pipe, socket or device"))
    return Member(name, found.st_size, 0, found.st_size, found.st_mtime_ns)
