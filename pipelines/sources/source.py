"""The interface of a source of images.

To add a source, write a class in a module of its own, make it in `chosen`, and name it in
`options.SOURCES`; if a table of sites may name it, also in `sites`.
"""

from __future__ import annotations

import dataclasses
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

from pipelines.listing.listing import Listing, ListingOptions
from pipelines.sources.reader import Reader

if TYPE_CHECKING:
    from pipelines.sources.sites import Site


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

        Its reader raises `tfrecord_io.preprocess.Reject` if only this file cannot be read, and
        `errors.BuildError` if the source is gone or has changed.

        Raises:
            errors.BuildError: if this worker cannot read the source.
        """
        ...

    def describe(self) -> dict[str, Any]:
        """Returns the source's entry in the manifest, without secrets and local paths."""
        ...


@dataclasses.dataclass(frozen=True, kw_only=True)
class SourceOptions:
    """Where the images come from, and where the workers are that read them.

    Attributes:
        source: the kind of source, such as `archive`.
        input: path or URL of the archive or folder; None for sources that download or draw.
        output: folder or URL of the dataset, which must not be inside the input.
        kaggle_dataset: OWNER/NAME of the dataset to download from Kaggle.
        fashion_mnist_url: address of the folder with Fashion-MNIST's four files.
        num_examples: number of images that the synthetic source draws.
        seed: seed of the synthetic images.
        download_dir: folder in which downloads and drawn images are kept.
        staging: URL of a folder to which a local archive is uploaded for remote workers.
        workers: `here` for this machine; `cluster` for machines that may share its disk;
            `dataflow` for machines that do not.
        sites: the sites of the source `sites`.
    """

    source: str
    input: str | None
    output: str
    kaggle_dataset: str
    fashion_mnist_url: str
    num_examples: int
    seed: int
    download_dir: Path
    staging: str | None
    workers: Literal["here", "cluster", "dataflow"]
    sites: tuple[Site, ...] = ()
