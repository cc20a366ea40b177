"""Images in a local folder, as SPLIT/CLASS/files or CLASS/files."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import filecmp
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from pipelines import errors
from pipelines.sources.member import Member
from pipelines.sources.reader import Reader
from pipelines.sources.source import Source
from tfrecord_io.rejects import Reject

# Errors that concern one path only: it may not be read, does not exist, or is not a file.
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
class DirectorySource(Source):
    """Images in a folder on a disk that every worker can read.

    Attributes:
        directory: the folder.
        kind: name of the source in the manifest.
    """

    directory: Path
    kind: str = "directory"

    def members(self) -> Iterator[Member]:
        """Yields the files; see `Source.members`."""
        if not self.directory.is_dir():
            raise errors.UserError(f"--input {self.directory} is not a folder")
        yield from _walk(self.directory)

    def same_content(self, one: Member, other: Member) -> bool:
        """Returns whether two files are the same; see `Source.same_content`."""
        return filecmp.cmp(self.directory / one.name, self.directory / other.name, shallow=False)

    @contextlib.contextmanager
    def open(self) -> Iterator[_DirectoryReader]:
        """Opens the folder on a worker; see `Source.open`."""
        yield _DirectoryReader(self.directory)

    def describe(self) -> dict[str, Any]:
        """Returns the source's entry in the manifest; see `Source.describe`."""
        return {"kind": self.kind, "name": self.directory.name}


@dataclasses.dataclass(frozen=True)
class _DirectoryReader(Reader):
    directory: Path

    def read(self, member: Member) -> bytes:
        return self.read_start(member, member.size)

    def read_start(self, member: Member, length: int) -> bytes:
        with self._clear_errors(member), self._open(member) as file:
            return file.read(length)

    def open(self, member: Member) -> BinaryIO:
        with self._clear_errors(member):
            return self._open(member)

    def _open(self, member: Member) -> BinaryIO:
        path = self.directory / member.name
        file = path.open("rb")
        now = os.fstat(file.fileno())
        if (now.st_size, now.st_mtime_ns) != (member.size, member.version):
            file.close()
            raise errors.BuildError(
                f"{path} changed since the build began (it had {member.size:,} bytes and now "
                f"has {now.st_size:,}, or its time changed); start again with --overwrite"
            )
        return file

    @contextlib.contextmanager
    def _clear_errors(self, member: Member) -> Iterator[None]:
        path = self.directory / member.name
        try:
            yield
        except FileNotFoundError:
            if not self.directory.is_dir():
                raise errors.BuildError(
                    f"{self.directory} does not exist on this worker; every worker must be able to "
                    "read it"
                ) from None
            raise errors.BuildError(
                f"{path} was removed since the build began; start again with --overwrite"
            ) from None
        except OSError as error:
            raise _unreadable(error, str(path)) from None


def _unreadable(error: OSError, shown: str) -> Reject | errors.BuildError:
    """Returns a reject for an error of the file itself, and a `BuildError` for any other error.

    Otherwise an exhausted machine, a stale mount or a failing disk would reject good images, and a
    resumed build would keep the rejects.
    """
    if error.errno in _ERRORS_OF_A_FILE:
        return Reject("unreadable_member", error.strerror or str(error))
    return errors.BuildError(
        f"cannot read {shown}: {error.strerror or error}. Check the disk and the machine, then run "
        "the same command again to resume"
    )


def _walk(directory: Path) -> Iterator[Member]:
    """Yields every file below a folder; links to folders are reported, but not followed."""

    def fail(error: OSError) -> None:
        # By default os.walk silently skips a folder that it cannot list, and so its images.
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
        status = os.stat(path)  # noqa: PTH116 - ten million of them; follows links to files
    except OSError as error:
        problem = _unreadable(error, path)
        if isinstance(problem, Reject):
            return Member(name, 0, problem=(problem.reason, problem.detail))
        raise problem from None
    if not stat.S_ISREG(status.st_mode):
        return Member(name, 0, problem=("not_a_file", "a pipe, socket or device"))
    return Member(name, status.st_size, 0, status.st_size, status.st_mtime_ns)
