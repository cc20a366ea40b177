"""Which examples a run trains on, validates on and tests on: splits, or folds of groups."""

from __future__ import annotations

import dataclasses
import hashlib

import numpy as np

import tfrecord_io
from tfrecord_io.manifest import EXAMPLES_FILE_NAME, WEIGHT
from tfrecord_io.reading.mapped import MappedDataset
from tfrecord_io.stores.folder import DataPath, path_in
from train.data.examples import Examples, column_names, read_examples
from train.data.options import FoldOptions, InputOptions
from train.errors import ConfigError


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Part:
    """Some examples of a dataset.

    Attributes:
        name: name of the part in messages and metrics.
        splits: the splits that contain the examples; they are read as one.
        examples: int64, places of the examples in these splits; None for all.
        num_examples: number of them.
        label_counts: number of examples with each label.
        weights: factor of each example in the loss, float32 [num_examples], above 0 and 1 on
            average; None if all count the same.
    """

    name: str
    splits: tuple[str, ...]
    examples: np.ndarray | None
    num_examples: int
    label_counts: tuple[int, ...]
    weights: np.ndarray | None = None


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Parts:
    """The parts of a run.

    Attributes:
        train: the examples to learn from.
        val: the examples to watch during training, and to fit the temperature and the thresholds
            on; None if there are none.
        test: the examples to evaluate once, at the end; None if there are none.
    """

    train: Part
    val: Part | None
    test: Part | None

    @property
    def evaluated(self) -> Part | None:
        """The part that the metrics measure: test, or validation if there is no test part."""
        return self.test or self.val


def choose_parts(
    options: InputOptions, folds: FoldOptions, manifest: tfrecord_io.Manifest
) -> Parts:
    """Returns the parts of a run.

    Args:
        options: name the dataset.
        folds: name the fold, if one is held out.
        manifest: of the dataset.

    Raises:
        ConfigError: if there is nothing to train on, a fold would be empty, a split of
            `fold_splits` does not exist, or weights of examples are not numbers of at least 0.
    """
    if folds.fold is None:
        parts = {name: whole_split(manifest, name) for name in ("train", "val", "test")}
        if parts["train"] is None:
            raise ConfigError(
                f"the training split of {options.data} is empty; build it with images"
            )
        return Parts(
            train=_weighted(options, manifest, parts["train"]),
            val=parts["val"],
            test=parts["test"],
        )
    splits = fold_splits(options, folds, manifest)
    examples = read_examples(options.data_path, splits)
    fold_of = patient_folds(examples, folds.folds or 0)
    in_fold = fold_of == folds.fold
    if in_fold.all() or not in_fold.any():
        raise ConfigError(
            f"fold {folds.fold} of {folds.folds} has {in_fold.sum()} of the {len(fold_of)} "
            f"images: there are too few {examples.groups.units}; use fewer --folds"
        )
    # Augmented copies are for training only.
    is_held_out = in_fold if examples.is_copy is None else in_fold & ~examples.is_copy

    def some(name: str, is_chosen: np.ndarray) -> Part:
        everything = Part(
            name=name, splits=splits, examples=None, num_examples=len(fold_of), label_counts=()
        )
        return narrow(everything, is_chosen, options.data_path, manifest)

    learnt = _weighted(options, manifest, some(f"all but fold {folds.fold}", ~in_fold))
    return Parts(train=learnt, val=None, test=some(f"fold {folds.fold}", is_held_out))


def _weighted(options: InputOptions, manifest: tfrecord_io.Manifest, part: Part) -> Part:
    """Returns a part with the weights of its examples, if the dataset has a column of them.

    Examples of weight 0 are left out: others would be mixed with them, and statistics count them.
    """
    # Looked for first: reading the keys of all examples takes longer.
    if WEIGHT not in column_names(options.data):
        return part
    given = read_examples(options.data_path, part.splits, part.examples).weights
    try:
        weights = np.array(given, np.float64)
    except ValueError:
        weights = np.array(np.nan)
    if not (np.isfinite(weights) & (weights >= 0)).all() or not weights.any():
        raise ConfigError(
            f"images count in training by the column {WEIGHT} of "
            f"{path_in(options.data, EXAMPLES_FILE_NAME)}; expected numbers of at least 0, and not "
            "only zeros. Change or rename the column in the table of labels, and build again"
        )
    counts = weights > 0
    if not counts.all():
        part = narrow(part, counts, options.data_path, manifest)
        weights = weights[counts]
    # The sum of very large ones would be infinite. A power of two changes no digit.
    weights = np.ldexp(weights, -np.frexp(weights.max())[1])
    return dataclasses.replace(part, weights=(weights / weights.mean()).astype(np.float32))


def narrow(
    part: Part, is_kept: np.ndarray, data: str | DataPath, manifest: tfrecord_io.Manifest
) -> Part:
    """Returns some of the examples of a part, without weights.

    Args:
        part: of the dataset.
        is_kept: bool [num_examples], which of its examples stay.
        data: folder of the dataset.
        manifest: of the dataset.
    """
    places = np.arange(part.num_examples) if part.examples is None else part.examples
    labels = MappedDataset(data, part.splits).labels(places[is_kept])
    return dataclasses.replace(
        part,
        examples=places[is_kept],
        num_examples=len(labels),
        label_counts=manifest.label_kind.count(labels),
        weights=None,
    )


def fold_splits(
    options: InputOptions, folds: FoldOptions, manifest: tfrecord_io.Manifest
) -> tuple[str, ...]:
    """Returns the splits that are divided into folds: those of `fold_splits`, or train and val.

    Raises:
        ConfigError: if a split of `fold_splits` does not exist.
    """
    named = (folds.fold_splits or "train,val").split(",")
    missing = [name for name in named if name not in manifest.splits]
    if folds.fold_splits and missing:
        raise ConfigError(
            f"--fold_splits {folds.fold_splits}: {options.data} has no split {missing[0]!r}; it "
            f"has {', '.join(manifest.splits)}"
        )
    return tuple(name for name in named if whole_split(manifest, name) is not None)


def patient_folds(examples: Examples, num_folds: int) -> np.ndarray:
    """Returns the fold of each example; all examples of a group have the same fold.

    The fold is a hash of the patient, or of what else the group is known from. A patient therefore
    stays in its fold when images are added, and on every machine.

    Args:
        examples: identities of the examples.
        num_folds: number of folds.

    Returns:
        int64 [num_examples] in 0..num_folds-1.
    """
    encoded = examples.groups.names.dictionary_encode()
    fold_of = [
        int.from_bytes(hashlib.sha256(name.removeprefix("patient:").encode()).digest()[:8], "big")
        % num_folds
        for name in encoded.dictionary.to_pylist()
    ]
    return np.array(fold_of)[encoded.indices.to_numpy()]


def read_statistics(data: str | DataPath, part: Part) -> tfrecord_io.PixelStatistics:
    """Returns the pixel statistics of a part.

    The statistics of the whole split `train` come with the dataset. For other parts all images are
    read.

    Args:
        data: folder of the dataset.
        part: the examples to measure.
    """
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
    """Returns a split as a part, or None if it does not exist or is empty."""
    split = manifest.splits.get(name)
    if split is None or not split.num_examples:
        return None
    return Part(
        name=name,
        splits=(name,),
        examples=None,
        num_examples=split.num_examples,
        label_counts=split.label_counts,
    )
