"""The interface of a source of images.

To add a source, write a class in a module of its own, make it in `factory`, and name it in
`options.SOURCES`.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol

from pipelines.listing.listing import Listing, ListingOptions
from pipelines.sources.reader import Reader


class Source(Protocol):
    """A place where images come from. It is pickled for the workers, so it holds plain values only.

    Sources inherit from this class, which has the defaults.
    """

    @property
    def must_be_unpacked(self) -> bool:
        """Whether listing the source takes minutes, because it must be unpacked first.

        The description of such a source must differ whenever its content differs.
        """
        return False

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

    def list(self, options: ListingOptions) -> Listing:
        """Lists the images, on the launcher.

        Args:
            options: the classes, the tree and the pattern of the patients.

        Raises:
            errors.UserError: if the input is damaged or holds no image.
            errors.BuildError: if a store does not answer.
        """
        ...

    def open(self) -> AbstractContextManager[Reader]:
        """Opens the source on a worker.

        Its reader raises `tfrecord_io.rejects.Reject` if only this file cannot be read, and
        `errors.BuildError` if the source is gone or has changed.

        Raises:
            errors.BuildError: if this worker cannot read the source.
        """
        ...

    def describe(self) -> dict[str, Any]:
        """Returns the source's entry in the manifest, without secrets and local paths."""
        ...
