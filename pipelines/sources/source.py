"""The interface of a source of images.

To add a source, write a class in a module of its own, make it in `factory`, and name it in
`sources.options.SOURCES`.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, ClassVar, Protocol

from pipelines.sources.member import Member
from pipelines.sources.reader import Reader


class Source(Protocol):
    """A place where images come from. It is pickled for the workers, so it holds plain values only.

    Sources inherit from this class, which has the defaults.

    Attributes:
        gives_labels: whether the members have a split and a label; if not, the names of their
            folders tell them.
    """

    gives_labels: ClassVar[bool] = False

    def prepare(self, scratch_dir: Path) -> Source:
        """Makes the source ready for random reads, on the launcher. By default it is.

        Args:
            scratch_dir: local folder that the source may use.

        Returns:
            the source to list and open.

        Raises:
            errors.UserError: if the input is missing or damaged, or the disk is full.
            errors.BuildError: if a store does not answer.
        """
        return self

    def members(self) -> Iterable[Member]:
        """Returns all files, on the launcher: images and others, in any order.

        Raises:
            errors.UserError: if the input is damaged or missing.
            errors.BuildError: if a store does not answer.
        """
        ...

    def same_content(self, one: Member, other: Member) -> bool:
        """Returns whether two files of one size are the same; by default by their versions."""
        return one.version == other.version

    def open(self) -> AbstractContextManager[Reader]:
        """Opens the source on a worker.

        Its reader raises `tfrecord_io.rejects.Reject` if a file is damaged, and
        `errors.BuildError` if it cannot be read, is gone or has changed.

        Raises:
            errors.BuildError: if this worker cannot read the source.
        """
        ...

    def describe(self) -> dict[str, Any]:
        """Returns the source's entry in the manifest, without secrets and local paths."""
        ...
