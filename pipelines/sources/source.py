"""What every source of images offers the build."""

from __future__ import annotations

import dataclasses
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Literal, Protocol

from pipelines.sources.listing import ImageRef, Listing, ListingOptions


class Reader(Protocol):
    """Reads files on a worker.

    One that waits for a network has an attribute `num_parallel_reads`, and its `read` is called
    by so many threads at once; one that waits for a disk may have a method `announce`, which is
    called with a reference some time before it is read. See `stores.prefetch`.
    """

    def read(self, ref: ImageRef) -> bytes:
        """Returns a file's bytes.

        Raises:
            tfrecord_io.preprocess.Reject: if this file cannot be read; the others still can.
            errors.BuildError: if the source itself is gone or has changed.
        """
        ...


class Source(Protocol):
    """A place images come from. It travels to the workers, so it holds only plain values.

    One that takes minutes to be listed has an attribute `must_be_unpacked` that is true, and its
    description differs whenever its content does.
    """

    def prepare(self, scratch_dir: Path) -> Source:
        """Makes the source ready for random reads, on the launcher; may use `scratch_dir`."""
        ...

    def list(self, options: ListingOptions) -> Listing:
        """Lists the images, on the launcher.

        Raises:
            errors.UserError: if there is nothing usable.
        """
        ...

    def open(self) -> AbstractContextManager[Reader]:
        """Opens the source on a worker."""
        ...

    def describe(self) -> dict[str, Any]:
        """Returns what the manifest says about the source; no secrets, no local paths."""
        ...


@dataclasses.dataclass(frozen=True, kw_only=True)
class SourceOptions:
    """Where the images come from, and from where the workers have to read them.

    Attributes:
        source: the kind of source, such as `archive`.
        input: the archive or folder, a path or a URL; sources that fetch or draw need none.
        output: folder or URL of the dataset, which must not lie in the input.
        kaggle_dataset: OWNER/NAME of the dataset that is downloaded from Kaggle.
        fashion_mnist_url: address of the folder with Fashion-MNIST's four files.
        num_examples: images that the synthetic source draws.
        seed: of its drawing.
        download_dir: where what is downloaded or drawn is kept.
        staging: URL of a folder to which a local archive is uploaded for remote workers.
        workers: `here` on this machine; on a `cluster`, which may see its disk; or on `dataflow`,
            which does not.
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
