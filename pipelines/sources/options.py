"""The options of the sources: where the images come from, and how workers reach them."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Literal

from pipelines.sources import fashion_mnist
from pipelines.sources.kaggle import download as kaggle
from tfrecord_io.flags import check, flag
from tfrecord_io.stores.folder import is_remote

SOURCES = ("kaggle", "archive", "directory", "fashion_mnist", "synthetic")

#: Where the images are decoded: on this machine; on machines that may share its disk; on machines
#: that do not.
Workers = Literal["here", "cluster", "dataflow"]

# What --input must be for a source that requires it; None for a source that accepts no --input.
_INPUTS = {
    "archive": "a .zip, .tar or .tar.gz file",
    "directory": "a folder",
    "kaggle": None,
    "synthetic": None,
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class SourceOptions:
    """Where the images come from.

    Raises:
        ValueError: if a value is wrong, or the source takes no such input.
    """

    source: str = flag(
        "kaggle",
        "where the images come from (default: kaggle, which downloads them and needs a free "
        "account; synthetic draws them and needs no account)",
        choices=SOURCES,
    )
    input: str | None = flag(
        None,
        "archive: the .zip, .tar or .tar.gz file; directory: the folder; fashion_mnist: the folder "
        "with its four files (default: download them). A zip or folder may be a URL such as "
        "s3://bucket/scans.zip",
        metavar="PATH",
    )
    kaggle_dataset: str = flag(
        kaggle.DEFAULT_DATASET, "kaggle: the dataset to download", metavar="OWNER/NAME"
    )
    fashion_mnist_url: str = flag(
        fashion_mnist.BASE_URL,
        "fashion_mnist: where to download the four files from",
        metavar="URL",
    )
    # One for each of four classes in each of three splits.
    num_examples: int = flag(2000, "synthetic: images to draw", metavar="N", least=12)
    download_dir: Path = flag(
        Path("data/downloads"),
        "where downloads and drawn images are kept for later builds",
        metavar="DIR",
    )
    staging: str | None = flag(
        None,
        "for workers that cannot read this machine's disk, such as Dataflow's: folder such as "
        "gs://bucket/folder to which a local or downloaded zip is uploaded once",
        metavar="URL",
    )

    def __post_init__(self) -> None:
        check(self)
        needed = _INPUTS.get(self.source, "")
        if needed and not self.input:
            raise ValueError(f"--source {self.source} needs --input, {needed}")
        if needed is None and self.input:
            raise ValueError(
                f"--source {self.source} takes no --input; use --source "
                + ("directory" if Path(self.input).is_dir() else "archive")
                + " to build your own images"
            )
        kaggle.check_dataset_name(self.kaggle_dataset)
        if self.staging and not is_remote(self.staging):
            raise ValueError(
                f"--staging must be a URL such as gs://bucket/folder, received {self.staging!r}"
            )
