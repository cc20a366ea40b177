"""What decides which source is made, and how workers reach it."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Literal


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
