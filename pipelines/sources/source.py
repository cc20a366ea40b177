"""The interface of a source of images: its files, and its reader on a worker.

To add a source, write a class in a module of its own, make it in `factory`, and name it in
`sources.options.SOURCES`.
"""

from __future__ import annotations

import io
from collections.abc import Iterable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, BinaryIO, ClassVar, NamedTuple, Protocol

#: A larger file is rejected as not a scan, because reading it could exhaust a worker's memory.
MAX_FILE_BYTES = 256 * 1024 * 1024

#: The problem of a file that this user may not read. It ends the build, because it can be mended.
NOT_PERMITTED = "not_permitted"


class Member(NamedTuple):
    """One file of a source, which may be an image or not.

    Attributes:
        name: its path in the source, with `/` between folders.
        size: size of the file's content in bytes.
        offset: position in the archive in bytes; 0 for files on a disk.
        stored_size: size in the archive in bytes, compressed or not.
        version: a number that changes when the content changes.
        problem: (reason, detail) if it is already known that the file cannot be read.
        split: its split, if the source knows it and does not leave it to the names of folders.
        label: its class, likewise.
    """

    name: str
    size: int
    offset: int = 0
    stored_size: int = 0
    version: int = 0
    problem: tuple[str, str] | None = None
    split: str = ""
    label: str = ""


class Reader(Protocol):
    """Reads files of a source, on a worker. Readers inherit from this class.

    A reader raises `tfrecord_io.rejects.Reject` if a file is damaged, and `errors.BuildError` if it
    cannot be read, is gone or has changed.

    Attributes:
        num_parallel_reads: number of threads that call `read` at the same time; more than one for
            a reader that waits for a network.
    """

    num_parallel_reads: int = 1

    def announce(self, member: Member) -> None:
        """Tells the reader that a file will be read soon, so that a disk can fetch it."""
        return

    def read(self, member: Member) -> bytes:
        """Returns the bytes of a file."""
        ...

    def read_start(self, member: Member, length: int) -> bytes:
        """Returns the first bytes of a file, about `length` of them; by default, all of it."""
        return self.read(member)

    def open(self, member: Member) -> BinaryIO:
        """Opens a file of which a part may be enough; by default, all of it is read."""
        return io.BytesIO(self.read(member))


class Source(Protocol):
    """A place where images come from. It is pickled for the workers, so it holds plain values only.

    Sources inherit from this class. Its methods raise `errors.UserError` if the input is missing or
    damaged, and `errors.BuildError` if it cannot be read.

    Attributes:
        gives_labels: whether the members have a split and a label; if not, the names of their
            folders tell them.
    """

    gives_labels: ClassVar[bool] = False

    def prepare(self, scratch_dir: Path) -> Source:
        """Returns the source ready for random reads, on the launcher; it may use a local folder."""
        return self

    def members(self) -> Iterable[Member]:
        """Returns all files, on the launcher: images and others, in any order."""
        ...

    def same_content(self, one: Member, other: Member) -> bool:
        """Returns whether two files of one size are the same; by default by their versions."""
        return one.version == other.version

    def open(self) -> AbstractContextManager[Reader]:
        """Opens the source on a worker."""
        ...

    def describe(self) -> dict[str, Any]:
        """Returns the source's entry in the manifest, without secrets and local paths."""
        ...
