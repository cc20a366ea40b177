"""The kinds of sources, their options, and the source that these choose.

Its images are downloaded, drawn or unpacked first. The paths in it are absolute, because a worker
may have another working directory.
"""

from __future__ import annotations

import dataclasses
import functools
import re
from pathlib import Path
from typing import Literal

from pipelines import errors
from pipelines.sources import kaggle, synthetic
from pipelines.sources.archive import open_archive
from pipelines.sources.directory import DirectorySource, RemoteDirectorySource
from pipelines.sources.npz import NpzFile
from pipelines.sources.source import Source
from tfrecord_io.stores.folder import BUILD_DIR, Folder
from tfrecord_io.terminal.address import Address, is_remote
from tfrecord_io.terminal.flags import check, flag

#: Where the images are decoded: on this machine; on machines that may share its disk; on machines
#: that do not.
Workers = Literal["here", "cluster", "dataflow"]

# What `--input` must be for each value of `--source`; None for a source that accepts none.
_INPUTS = {
    "kaggle": None,
    "archive": "a .zip file",
    "directory": "a folder",
    "npz": "a .npz file",
    "synthetic": None,
}
# The flags that one source alone reads.
_ONLY_FOR = {"kaggle_dataset": "kaggle", "num_examples": "synthetic"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class SourceOptions:
    """Where the images come from.

    Raises:
        ValueError: if a value is wrong, or the source takes no such input.
    """

    source: str = flag(
        "",
        "where the images come from (default: archive, directory or npz, as --input is; without "
        "--input kaggle, which downloads them and needs a free account; synthetic draws them and "
        "needs no account)",
        choices=tuple(_INPUTS),
    )
    input: Address | None = flag(
        None,
        "a folder, a .zip file, or a .npz file with images and labels; a zip or folder may be a "
        "URL such as s3://bucket/scans.zip",
        metavar="PATH",
    )
    kaggle_dataset: str = flag(
        kaggle.DEFAULT_DATASET, "kaggle: the dataset to download", metavar="OWNER/NAME"
    )
    # One for each of four classes in each of three splits.
    num_examples: int = flag(2000, "synthetic: images to draw", metavar="N", least=12)
    download_dir: Path = flag(
        Path("data/downloads"),
        "where downloads and drawn images are kept for later builds",
        metavar="DIR",
    )

    @functools.cached_property
    def arrays(self) -> NpzFile | None:
        """The file, if the images are arrays in one that holds their labels, too."""
        return NpzFile(_local_input(self)) if self.source == "npz" else None

    def __post_init__(self) -> None:
        if not self.source:
            object.__setattr__(self, "source", _source_of(self.input))  # the dataclass is frozen
        check(self)
        needed = _INPUTS[self.source]
        if needed and not (self.input or "").strip():
            raise ValueError(f"--source {self.source} needs --input, {needed}")
        if not needed and self.input:
            raise ValueError(f"--source {self.source} takes no --input; leave one of them out")
        for name, source in _ONLY_FOR.items():
            if source != self.source and getattr(self, name) != getattr(SourceOptions, name):
                raise ValueError(f"--{name} is for --source {source}; received {self.source}")
        slug = r"[A-Za-z0-9][A-Za-z0-9_-]*"
        if not re.fullmatch(f"{slug}/{slug}", self.kaggle_dataset):
            raise ValueError(
                "--kaggle_dataset must be OWNER/NAME, as in the dataset's address, "
                f"https://www.kaggle.com/datasets/OWNER/NAME; received {self.kaggle_dataset!r}"
            )


def _source_of(address: str | None) -> str:
    """Returns the source that reads an input."""
    if address is None:
        return "kaggle"
    if address.lower().endswith(".npz"):
        return "npz"
    is_zip = address.lower().endswith(".zip") and not Path(address).is_dir()
    return "archive" if is_zip or Path(address).is_file() else "directory"


def open_source(options: SourceOptions, workers: Workers, seed: int, output: Folder) -> Source:
    """Returns the source that the user chose, ready for random reads.

    `seed` is that of synthetic images. Arrays are packed into the output, if that is a local
    folder.

    Raises:
        errors.UserError: if credentials are missing, an option does not fit the source, or the
            workers cannot read the images.
        errors.BuildError: if the data could not be downloaded or drawn.
    """
    downloads, address = options.download_dir.absolute(), options.input
    # The workers of a cluster may share a disk with this machine; Dataflow's do not.
    if workers == "dataflow" and not is_remote(address or ""):
        raise errors.UserError(
            f"--source {options.source} reads from a disk of this machine, which Dataflow's "
            "workers cannot read; copy the images to gs://, as with gcloud storage cp, and give "
            "that folder or zip as --input"
        )
    if options.source == "kaggle":
        path = kaggle.download_archive(options.kaggle_dataset, downloads)
        return open_archive(path, kind="kaggle", dataset=options.kaggle_dataset)
    if options.source == "synthetic":
        folder = downloads / f"synthetic-{options.num_examples}-seed-{seed}"
        synthetic.write_tree(folder, options.num_examples, seed)
        return DirectorySource(folder, kind="synthetic")
    if arrays := options.arrays:
        folder = downloads if output.remote else Path(output.path(BUILD_DIR))
        return open_archive(arrays.packed(folder), kind="npz", name=arrays.path.name)
    place = address if address is not None and is_remote(address) else _local_input(options)
    if options.source == "archive":
        return open_archive(place)
    return DirectorySource(place) if isinstance(place, Path) else RemoteDirectorySource(place)


def _local_input(options: SourceOptions) -> Path:
    path, wanted = Path(options.input or "").absolute(), _INPUTS[options.source]
    if not path.exists():
        raise errors.UserError(f"--input {options.input} does not exist on this machine")
    if path.is_dir() != (options.source == "directory"):
        raise errors.UserError(
            f"--input {path} is not what --source {options.source} reads: {wanted}"
        )
    return path
