"""A dataset that is opened once for a whole run, and which of its examples it uses for what."""

from __future__ import annotations

import dataclasses
import functools
import operator
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tfrecord_io.format import examples
from tfrecord_io.format.examples import IDENTITY, SITE
from tfrecord_io.format.groups import Groups, plural_unit
from tfrecord_io.format.hashing import draw
from tfrecord_io.format.manifest import STATISTICS_SPLIT, Manifest, ManifestError
from tfrecord_io.format.statistics import PixelStatistics
from tfrecord_io.reading.mapped import MappedDataset
from tfrecord_io.stores.folder import Folder
from tfrecord_io.terminal.errors import UserError
from train.data.options import FoldOptions

#: What identifies an image, and which images belong together.
IMAGE_COLUMNS = (*IDENTITY, "file_xxh3")

# Columns that are read, besides those that are measured.
_COLUMNS = (*IMAGE_COLUMNS, "path", "split", "shard", "row", "variant")


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Part:
    """Some examples of a dataset, of these splits; `name` is that in messages and metrics.

    `rows` are int64 [num_examples], places of the examples in `Dataset.table`.
    """

    name: str
    splits: tuple[str, ...]
    rows: np.ndarray

    @property
    def num_examples(self) -> int:
        return len(self.rows)

    def narrow(self, is_kept: np.ndarray, name: str | None = None) -> Part:
        """Returns the examples where `is_kept`, bool [num_examples], under another name if any."""
        return dataclasses.replace(self, rows=self.rows[is_kept], name=name or self.name)


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Dataset:
    """A dataset, with all that is known of its examples but their pixels and labels.

    Attributes:
        table: a row an example in stored order, split after split, with the columns of
            examples.parquet that a run uses.
        groups: of the same examples.
        measured: the columns of the table whose values are measured by themselves.
    """

    path: Folder
    manifest: Manifest
    table: pa.Table
    groups: Groups
    measured: tuple[str, ...]

    @property
    def splits(self) -> list[str]:
        """The splits that have examples; they are read as one, in the order of the table."""
        return [name for name, split in self.manifest.splits.items() if split.num_examples]

    def part(self, *splits: str) -> Part | None:
        """Returns the examples of the named splits as one part, or None if there are none."""
        names = [name for name in splits if name in self.splits]
        if not names:
            return None
        is_in = (pc.equal(self.table["split"], name).to_numpy() for name in names)
        rows = np.concatenate([*map(np.flatnonzero, is_in)])
        return Part(name=", ".join(names), splits=tuple(names), rows=rows)

    def label_counts(self, part: Part) -> tuple[int, ...]:
        """Returns the number of examples with each label; of whole splits nothing is read."""
        whole = self.manifest.split(part.splits)
        if part.num_examples == whole.num_examples:
            return whole.label_counts
        return self.manifest.label_kind.count(self.stored.labels(part.rows))

    def column(self, name: str) -> pa.ChunkedArray:
        """Returns a column of `table`; nulls if it has none of that name."""
        if name in self.table.column_names:
            return self.table[name]
        return pa.chunked_array([pa.nulls(len(self.table), pa.int64())])

    def values(self, name: str, rows: np.ndarray) -> list[Any]:
        """Returns what a column says of the examples at these places; None where unknown."""
        return self.column(name).take(rows).to_pylist()

    def is_copy(self, part: Part) -> np.ndarray:
        """Returns which of a part's examples are augmented copies, bool [num_examples]."""
        variants = self.column("variant").take(part.rows).fill_null(0)
        return pc.greater(variants, 0).to_numpy()

    @functools.cached_property
    def images(self) -> pa.Table:
        """The `IMAGE_COLUMNS` of all examples as texts; null if unknown."""
        return pa.table({name: self.column(name).cast(pa.string()) for name in IMAGE_COLUMNS})

    @functools.cached_property
    def stored(self) -> MappedDataset:
        """The images and labels of all examples, by their rows."""
        return MappedDataset(self.path, self.splits)

    def statistics(self, part: Part) -> PixelStatistics:
        """Returns the pixel statistics of a part; all but the whole split `train` is read."""
        whole, known = self.part(STATISTICS_SPLIT), self.manifest.statistics
        is_whole = whole and (part.splits, part.num_examples) == (whole.splits, whole.num_examples)
        if is_whole and known:
            return known
        # Some 256 images at a time.
        blocks = np.array_split(part.rows, part.num_examples // 256 + 1)
        counted = (PixelStatistics.from_images(self.stored[rows][0]) for rows in blocks)
        return functools.reduce(operator.add, counted)


def open_dataset(path: str | Folder, columns: Sequence[str] = ()) -> Dataset:
    """Reads what is known of a dataset; `columns` of its table are measured besides `SITE`.

    Raises:
        UserError: if the table is missing or damaged, lacks one of these columns or the groups,
            or does not have one row for each example.
    """
    path = Folder(path)
    manifest = Manifest.load(path)
    measured = tuple(dict.fromkeys((SITE, *columns)))
    try:
        table = examples.in_stored_order(examples.read_examples(path), manifest)
        groups = examples.groups_in(table)
    except ManifestError as error:
        raise UserError(f"{path}: {error}") from None
    known = table.column_names
    if unknown := [name for name in columns if name not in known]:
        raise UserError(
            f"--by {unknown[0]}: expected a column of {path.path(examples.FILE_NAME)}, which has "
            f"{', '.join(known)}"
        )
    wanted = dict.fromkeys((*_COLUMNS, *measured))
    return Dataset(
        path=path,
        manifest=manifest,
        table=table.select([name for name in wanted if name in known]),
        groups=groups,
        measured=tuple(name for name in measured if name in known),
    )


# ---- the parts of a run


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Parts:
    """The parts of a run: it learns from `train`, and evaluates `test` once, at the end.

    It watches `val` during training, and fits the temperature and the thresholds on it.
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
        ManifestError: if a split named in `fold_splits` is missing.
        UserError: if there is nothing to train on, or a fold would be empty.
    """
    if folds.fold is None:
        train = dataset.part("train")
        if train is None:
            raise UserError(f"the training split of {dataset.path} is empty; build it with images")
        val, test = dataset.part("val"), dataset.part("test")
        return Parts(train=train, val=val, test=test)
    everyone = divided(dataset, folds)
    groups = dataset.groups.take(everyone.rows)
    in_fold = patient_folds(groups, folds.folds or 0) == folds.fold
    if in_fold.all() or not in_fold.any():
        raise UserError(
            f"fold {folds.fold} of {folds.folds} has {in_fold.sum()} of the {len(in_fold)} "
            f"images: there are too few {plural_unit(groups.unit)}; use fewer --folds"
        )
    # Augmented copies are for training only.
    is_held_out = in_fold & ~dataset.is_copy(everyone)
    others = everyone.narrow(~in_fold, name=f"all but fold {folds.fold}")
    held_out = everyone.narrow(is_held_out, name=f"fold {folds.fold}")
    return Parts(train=others, val=None, test=held_out)


def divided(dataset: Dataset, folds: FoldOptions) -> Part:
    """Returns the examples that are divided into folds: of `fold_splits`, or of train and val.

    Raises:
        ManifestError: if a split named in `fold_splits` is missing.
        UserError: if the splits have no examples.
    """
    named = (folds.fold_splits or "train,val").split(",")
    if folds.fold_splits:
        dataset.manifest.split(named)  # raises ManifestError
    if everyone := dataset.part(*named):
        return everyone
    raise UserError(
        f"--folds: the splits {', '.join(named)} of {dataset.path} have no images; name others "
        "with --fold_splits"
    )


def patient_folds(groups: Groups, num_folds: int) -> np.ndarray:
    """Returns the fold of each example, int64 [num_examples]; a group is in one fold.

    The fold is a hash of the group's name, so a patient stays in its fold when images are added. A
    split of `--splits patient` is decided by the upper bits of that hash, and the fold by the
    remainder, so the two are independent.
    """
    encoded = groups.names.dictionary_encode()
    fold_of = (draw(encoded.dictionary.to_pylist()) % np.uint64(num_folds)).astype(np.int64)
    return fold_of[encoded.indices.to_numpy()]
