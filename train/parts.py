"""Which examples a run trains on, watches and is measured on: splits, or folds of patients."""

from __future__ import annotations

import dataclasses
import hashlib

import numpy as np

import tfrecord_io
from tfrecord_io.reading.mapped import MappedDataset
from train import metrics
from train.config import ConfigError, TrainConfig


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Part:
    """Some examples of a dataset.

    Attributes:
        name: what messages and metrics call it.
        splits: the splits that hold them, which are read as one.
        examples: int64, their places in these splits; None for all.
        label_counts: examples of each class.
    """

    name: str
    splits: tuple[str, ...]
    examples: np.ndarray | None
    label_counts: tuple[int, ...]

    @property
    def num_examples(self) -> int:
        return sum(self.label_counts)


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Parts:
    """The parts of a run; None where there is no such example.

    Attributes:
        train: learnt from.
        val: looked at during training; the temperature and the thresholds are fitted to it.
        test: evaluated once, at the end.
    """

    train: Part
    val: Part | None
    test: Part | None

    @property
    def evaluated(self) -> Part | None:
        """What the metrics are of: the test part, or without one the validation part."""
        return self.test or self.val


def choose_parts(config: TrainConfig, manifest: tfrecord_io.Manifest) -> Parts:
    """Returns the parts that a configuration asks for.

    Raises:
        ConfigError: if there is nothing to train on, or a fold would be empty.
        ManifestError: if a split that was named does not exist.
    """
    if config.fold is None:
        parts = {name: whole_split(manifest, name) for name in ("train", "val", "test")}
        if parts["train"] is None:
            raise ConfigError(f"the training split of {config.data} is empty; build it with images")
        return Parts(train=parts["train"], val=parts["val"], test=parts["test"])
    splits = fold_splits(config, manifest)
    folds = patient_folds(metrics.read_examples(config.data, splits), config.folds or 0)
    is_held_out = folds == config.fold
    if is_held_out.all() or not is_held_out.any():
        raise ConfigError(
            f"fold {config.fold} of {config.folds} has {is_held_out.sum()} of the "
            f"{len(folds)} images: there are too few patients for so many --folds"
        )
    labels = MappedDataset(config.data, splits).labels(range(len(folds))).argmax(-1)
    learnt, held_out = (
        Part(
            name=name,
            splits=splits,
            examples=np.flatnonzero(chosen),
            label_counts=tuple(
                np.bincount(labels[chosen], minlength=manifest.num_classes).tolist()
            ),
        )
        for name, chosen in (
            (f"all but fold {config.fold}", ~is_held_out),
            (f"fold {config.fold}", is_held_out),
        )
    )
    return Parts(train=learnt, val=None, test=held_out)


def fold_splits(config: TrainConfig, manifest: tfrecord_io.Manifest) -> tuple[str, ...]:
    """Returns the splits that are cut into folds: those named, or train and val.

    Raises:
        ConfigError: if a split that was named does not exist.
    """
    named = (config.fold_splits or "train,val").split(",")
    missing = [name for name in named if name not in manifest.splits]
    if config.fold_splits and missing:
        raise ConfigError(
            f"--fold_splits {config.fold_splits}: {config.data} has no split {missing[0]!r}; it "
            f"has {', '.join(manifest.splits)}"
        )
    return tuple(name for name in named if whole_split(manifest, name) is not None)


def patient_folds(examples: metrics.Examples, num_folds: int) -> np.ndarray:
    """Returns int64 [num_examples]: the fold of each example, the same for all of a patient.

    It is a hash of the patient (where the dataset does not name patients, of the image), so a
    patient stays in its fold when images are added, and with the same number of folds on every
    machine.
    """
    fold_of = {
        identity: int.from_bytes(hashlib.sha256(identity.encode("utf-8")).digest()[:8], "big")
        % num_folds
        for identity in set(examples.patients or examples.keys)
    }
    return np.array([fold_of[identity] for identity in examples.patients or examples.keys])


def read_statistics(data: str, part: Part) -> tfrecord_io.PixelStatistics:
    """Returns the sums over the pixels of a part; chosen examples are read once."""
    if part.examples is None and part.splits == ("train",):
        return tfrecord_io.read_statistics(data)
    mapped = MappedDataset(data, part.splits)
    places = np.arange(len(mapped)) if part.examples is None else part.examples
    blocks = np.array_split(places, max(1, len(places) // 256))
    total = tfrecord_io.PixelStatistics.from_images(mapped[blocks[0]][0])
    for block in blocks[1:]:
        total += tfrecord_io.PixelStatistics.from_images(mapped[block][0])
    return total


def whole_split(manifest: tfrecord_io.Manifest, name: str) -> Part | None:
    """Returns a split as a part, or None if the dataset has none of that name, or it is empty."""
    split = manifest.splits.get(name)
    if split is None or not split.num_examples:
        return None
    return Part(name=name, splits=(name,), examples=None, label_counts=split.label_counts)
