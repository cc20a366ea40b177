"""Options of the data: where it is, how its batches are made, augmented, and divided into folds."""

from __future__ import annotations

import dataclasses

from tfrecord_io.stores.folder import Folder
from tfrecord_io.terminal import flags
from tfrecord_io.terminal.address import Address, local_path
from tfrecord_io.terminal.flags import flag


@dataclasses.dataclass(frozen=True, kw_only=True)
class InputOptions:
    """Which examples there are, and in which batches they come."""

    data: Address = flag(
        "",
        "folder of a finished dataset (it contains manifest.json), or its URL: s3://, gs:// or "
        "az://",
        metavar="OUT",
        is_operational=True,
    )
    epochs: int | None = flag(
        None,
        "passes over the training split, including those of the head (default: by the number of "
        "images, such as 152 for 500 and 24 for 20,000; with pretrained weights 23 and 4)",
        least=1,
    )
    seed: int = flag(0, "seed of the weights, the order and the augmentation", least=0)
    # Only the global batch size matters: a run may continue on another number of replicas.
    replica_batch_size: int | None = flag(
        None,
        "images per step and replica; the global batch size is this x replicas (default: 64 for "
        "10,000 or more training images, else 32; at most the training images per replica)",
        least=1,
        is_operational=True,
    )
    global_batch_size: int | None = flag(
        None,
        "images per step over all replicas; overrides --replica_batch_size",
        alias="batch_size",
        least=1,
    )
    cache_dir: str | None = flag(
        None,
        "for a URL: folder on a local disk that keeps what was read (default: tfrecord_io in the "
        "user's cache folder)",
        parse=lambda text: str(local_path(text)),
        metavar="DIR",
        is_operational=True,
    )
    cache_gb: float | None = flag(
        None,
        "for a URL: the most that --cache_dir may take, in 10^9 bytes (default: half of what is "
        "free on its disk)",
        least=0,
        is_operational=True,
    )

    __post_init__ = flags.check

    @property
    def data_path(self) -> Folder:
        """Where the dataset is read from, and kept; `data` with its cache."""
        return Folder(self.data, self.cache_dir, self.cache_gb)


@dataclasses.dataclass(frozen=True, kw_only=True)
class AugmentOptions:
    """How training images change at random."""

    augment: bool = flag(
        True,
        "mirror, warp, light and partly erase training images at random, and add noise, on the "
        "device; without it a prediction is not averaged with that of the mirror image either",
    )
    augment_strength: float = flag(
        1.0, "factor for the ranges of the augmentation; 0 leaves only the mirroring", least=0
    )
    mixup: float | None = flag(
        None,
        "train on mixtures of two images, with shares drawn from Beta(X, X); 0: no mixtures "
        "(default: 0 with pretrained weights but for vgg16, else 0.3)",
        least=0,
    )

    def __post_init__(self) -> None:
        flags.check(self)
        if not self.augment and self.augment_strength != 1:
            raise ValueError("--augment_strength is for --augment; leave it out")


@dataclasses.dataclass(frozen=True, kw_only=True)
class FoldOptions:
    """Whether and how the patients are divided into folds."""

    folds: int | None = flag(
        None,
        "cross-validate: divide the patients into this many folds and hold out each in turn",
        least=2,
    )
    fold_splits: str | None = flag(
        None,
        "with --folds: the splits to divide, such as train,val,test (default: train,val)",
        metavar="A,B,...",
    )
    fold: int | None = flag(
        None, "with --folds: a single run that holds out this fold, counted from 0", least=0
    )

    def __post_init__(self) -> None:
        flags.check(self)
        if self.folds is None and (self.fold is not None or self.fold_splits):
            raise ValueError("--fold and --fold_splits need --folds; add --folds")
        if self.fold is not None and self.fold >= (self.folds or 0):
            raise ValueError(f"--fold must be in 0..{(self.folds or 0) - 1}, received {self.fold}")

    @property
    def is_cross_validation(self) -> bool:
        """Whether there is a run for each fold, in folders below that of the whole."""
        return self.folds is not None and self.fold is None
