"""Which examples a run trains on, validates on and tests on: splits, or folds of groups."""

from __future__ import annotations

import dataclasses
import hashlib

import numpy as np

from tfrecord_io.groups import Groups
from tfrecord_io.manifest import EXAMPLES_FILE_NAME, WEIGHT
from tfrecord_io.stores.folder import path_in
from train.data.dataset import Dataset, Part
from train.data.options import FoldOptions
from train.errors import ConfigError


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Parts:
    """The parts of a run.

    It learns from `train`, watches `val` during training and fits the temperature and the
    thresholds on it, and evaluates `test` once, at the end.
    """

    train: Part
    val: Part | None
    test: Part | None

    @property
    def evaluated(self) -> Part | None:
        """The part that the metrics measure: test, or validation if there is no test part."""
        return self.test or self.val


def choose_parts(dataset: Dataset, folds: FoldOptions) -> Parts:
    """Returns the parts of a run: the splits, or those of a fold that is held out.

    Raises:
        ConfigError: if there is nothing to train on, a fold would be empty, a split of
            `fold_splits` does not exist, or weights of examples are not numbers of at least 0.
    """
    if folds.fold is None:
        train = dataset.part("train")
        if train is None:
            raise ConfigError(
                f"the training split of {dataset.path} is empty; build it with images"
            )
        val, test = dataset.part("val"), dataset.part("test")
        return Parts(train=_weighted(dataset, train), val=val, test=test)
    everyone = divided(dataset, folds)
    groups = dataset.groups_of(everyone)
    fold_of = patient_folds(groups, folds.folds or 0)
    in_fold = fold_of == folds.fold
    if in_fold.all() or not in_fold.any():
        raise ConfigError(
            f"fold {folds.fold} of {folds.folds} has {in_fold.sum()} of the {len(fold_of)} "
            f"images: there are too few {groups.units}; use fewer --folds"
        )
    # Augmented copies are for training only.
    is_held_out = in_fold & ~dataset.is_copy(everyone)

    def some(name: str, is_chosen: np.ndarray) -> Part:
        return dataclasses.replace(dataset.narrow(everyone, is_chosen), name=name)

    learnt = _weighted(dataset, some(f"all but fold {folds.fold}", ~in_fold))
    return Parts(train=learnt, val=None, test=some(f"fold {folds.fold}", is_held_out))


def _weighted(dataset: Dataset, part: Part) -> Part:
    """Returns a part with the weights of its examples, if the dataset has a column of them.

    Examples of weight 0 are left out: others would be mixed with them, and statistics count them.
    """
    if WEIGHT not in dataset.columns:
        return part
    try:
        given = dataset.column(WEIGHT).take(dataset.rows(part))
        weights = np.array(given.to_pylist(), np.float64)
    except ValueError:
        weights = np.array(np.nan)
    if not (np.isfinite(weights) & (weights >= 0)).all() or not weights.any():
        raise ConfigError(
            f"images count in training by the column {WEIGHT} of "
            f"{path_in(dataset.path, EXAMPLES_FILE_NAME)}; expected numbers of at least 0, and not "
            "only zeros. Change or rename the column in the table of labels, and build again"
        )
    counts = weights > 0
    if not counts.all():
        part = dataset.narrow(part, counts)
        weights = weights[counts]
    # The sum of very large ones would be infinite. A power of two changes no digit.
    weights = np.ldexp(weights, -np.frexp(weights.max())[1])
    return dataclasses.replace(part, weights=(weights / weights.mean()).astype(np.float32))


def divided(dataset: Dataset, folds: FoldOptions) -> Part:
    """Returns the examples that are divided into folds: of `fold_splits`, or of train and val.

    Raises:
        ConfigError: if a split named in `fold_splits` is missing, or the splits have no examples.
    """
    named = (folds.fold_splits or "train,val").split(",")
    splits = dataset.manifest.splits
    missing = [name for name in named if name not in splits]
    if folds.fold_splits and missing:
        raise ConfigError(
            f"--fold_splits {folds.fold_splits}: {dataset.path} has no split {missing[0]!r}; it "
            f"has {', '.join(splits)}"
        )
    everyone = dataset.part(*named)
    if everyone is None:
        raise ConfigError(
            f"--folds: the splits {', '.join(named)} of {dataset.path} have no images; name "
            "others with --fold_splits"
        )
    return everyone


def patient_folds(groups: Groups, num_folds: int) -> np.ndarray:
    """Returns the fold of each example, int64 [num_examples]; a group is in one fold.

    The fold is a hash of the patient, or of what else the group is known from. A patient therefore
    stays in its fold when images are added, and on every machine.
    """
    encoded = groups.names.dictionary_encode()
    fold_of = [
        int.from_bytes(hashlib.sha256(name.removeprefix("patient:").encode()).digest()[:8], "big")
        % num_folds
        for name in encoded.dictionary.to_pylist()
    ]
    return np.array(fold_of)[encoded.indices.to_numpy()]
