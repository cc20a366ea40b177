"""What a network has seen: the images that its weights, statistics or thresholds depend on.

A run lists them in seen.parquet, which its export does not contain.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tfrecord_io.files import atomic_write
from tfrecord_io.groups import COLUMN
from train.data.dataset import IDENTITY, Dataset, Part, Parts
from train.errors import ConfigError

FILE_NAME = "seen.parquet"

_TEXT = pa.string()

# Null is unknown. `part` is where an image was used: in train or val. The file has the site only of
# a dataset that names it.
_SCHEMA = pa.schema([(name, _TEXT) for name in (*IDENTITY, "part")])

# Entry of the file's metadata.
_UNKNOWN = b"unknown"


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Seen:
    """The images that a network has seen, a row each of the columns of `_SCHEMA`.

    `unknown` says why these may not be all, such as `its first weights are from elsewhere (a.h5)`;
    it is empty if they are.
    """

    images: pa.Table = dataclasses.field(default_factory=_SCHEMA.empty_table)
    unknown: str = ""

    def write(self, path: Path, *, is_private: bool = False) -> None:
        """Writes the file, for its owner only if it `is_private`."""
        table = self.images
        if table["site"].null_count == len(table):
            table = table.drop_columns("site")
        table = table.replace_schema_metadata({_UNKNOWN: self.unknown.encode()})
        with atomic_write(path, is_private=is_private) as file:
            pq.write_table(table, file)

    def without(self, part: str) -> Seen:
        """Returns the images of all parts but one."""
        images = self.images.filter(pc.not_equal(self.images["part"], part))
        return dataclasses.replace(self, images=images)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Exposure:
    """How much of what was to be measured a network had seen before: images, known patients.

    Attributes:
        is_measured: whether the measures include these images.
        doubts: why it may have seen more of the others, or of their patients; empty if it is
            proven that it has not.
    """

    num_images: int
    num_patients: int
    is_measured: bool
    doubts: tuple[str, ...] = ()

    @property
    def note(self) -> str | None:
        """What cannot be known, as a sentence without capital and full stop; None if all is."""
        if not self.doubts:
            return None
        return (
            "it cannot be known whether the network has seen more of these images, or other images "
            f"of their patients: {'; '.join(self.doubts)}"
        )


def read_seen(run: Path) -> Seen:
    """Returns what the network of a run has seen; unknown if the run is older.

    The folder may be the export in that of a run; a copy of the export elsewhere has no list.
    Raises ConfigError if the file is damaged.
    """
    folder = run.absolute()
    is_export = folder.name == "export" and not (folder / FILE_NAME).exists()
    path = (folder.parent if is_export else folder) / FILE_NAME
    return _read(path) or Seen(unknown=f"its run has no {FILE_NAME}")


def _read(path: Path) -> Seen | None:
    """Returns the content of a file, or None if it is missing."""
    try:
        table = pq.read_table(path)
        facts = table.schema.metadata or {}
        if "site" not in table.column_names:
            table = table.append_column("site", pa.nulls(len(table), _TEXT))
        images = table.select(_SCHEMA.names).cast(_SCHEMA)
    except FileNotFoundError:
        return None
    except (OSError, KeyError, pa.ArrowInvalid) as error:
        raise ConfigError(f"{path} is damaged ({error}); copy it again") from None
    return Seen(images=images, unknown=facts.get(_UNKNOWN, b"").decode())


def collect(images: pa.Table, parts: Mapping[str, np.ndarray], unknown: str = "") -> Seen:
    """Returns what a run sees: rows of `Dataset.images`, by the name of their part."""
    tables = [
        images.take(rows).append_column("part", pa.array([name] * len(rows), _TEXT))
        for name, rows in parts.items()
    ]
    return Seen(images=pa.concat_tables(tables).combine_chunks(), unknown=unknown)


def find_seen(seen: Seen, images: pa.Table) -> np.ndarray:
    """Returns bool [num_images]: whether a network has seen each image of a dataset.

    It has if it has seen the same pixels, the group or the patient, or in one of these ways
    another image of the group; so `images` are those of the whole dataset.
    """
    found = pc.is_in(images["pixels_xxh3"], seen.images["pixels_xxh3"].drop_null()).to_numpy()
    for name in (COLUMN, "patient"):
        found = found | _is_same(images, seen.images, name)
    groups = images[COLUMN].filter(pa.array(found)).drop_null()
    return found | pc.is_in(images[COLUMN], groups).to_numpy()


def _is_same(images: pa.Table, seen: pa.Table, column: str) -> np.ndarray:
    """Returns whether the group or patient of each image was seen.

    Equal names are the same unless both sites are known and differ.
    """
    known = {(name, site) for name, site in _by_site(seen, column) if name is not None}
    anywhere = {name for name, _ in known}
    is_same = (
        {(name, site), (name, None)} & known or (site is None and name in anywhere)
        for name, site in _by_site(images, column)
    )
    return np.fromiter(map(bool, is_same), bool)


def _by_site(table: pa.Table, column: str) -> list[tuple[str | None, str | None]]:
    """Returns the name of each patient or group without its site, and the site.

    A build begins the name of a patient with the site. The group of an image can be named after a
    patient of another site.
    """
    sites = set(pc.unique(table["site"]).to_pylist()) - {None}
    prefix = "patient:" if column == COLUMN else ""
    found = []
    rows = (table[name].to_pylist() for name in (column, "patient", "site"))
    for name, patient, own in zip(*rows, strict=True):
        site = None
        if name is not None and name.startswith(prefix):
            person = name.removeprefix(prefix)
            site = own if person == patient else person.partition("/")[0]
            site = site if site in sites else None
            name = prefix + (person.removeprefix(f"{site}/") if site else person)
        found.append((name, site))
    return found


def expose(
    seen: Seen, images: pa.Table, rows: np.ndarray, is_seen: np.ndarray, *, is_measured: bool
) -> Exposure:
    """Counts what a network has seen of some rows of `Dataset.images`.

    Which of them it has seen is in `is_seen`, bool [num_rows]; `is_measured` tells whether these
    are measured with the others.
    """
    doubts = [seen.unknown] if seen.unknown else []
    measured = images.take(rows if is_measured else rows[~is_seen])
    for table, which in ((measured, "that are measured"), (seen.images, "that it has seen")):
        for column, name in (("patient", "patient"), ("pixels_xxh3", "hash of the pixels")):
            if count := table[column].null_count:
                doubts.append(f"{count:,} of the {len(table):,} images {which} have no {name}")
    return Exposure(
        num_images=int(is_seen.sum()),
        num_patients=pc.count_distinct(images["patient"].take(rows[is_seen])).as_py(),
        is_measured=is_measured,
        doubts=tuple(doubts),
    )


def expose_folds(images: pa.Table, folds: Sequence[tuple[Seen, Part]]) -> Exposure:
    """Counts what each run of a cross-validation has seen of the fold that it held out."""
    rows = np.concatenate([fold.rows for _, fold in folds])
    is_seen = np.concatenate([find_seen(seen, images)[fold.rows] for seen, fold in folds])
    # All start from the same weights.
    start = Seen(unknown=folds[0][0].unknown)
    return expose(start, images, rows, is_seen, is_measured=True)


def unseen_part(
    dataset: Dataset, part: Part, seen: Seen, *, is_measured: bool, remedy: str
) -> tuple[Part, Exposure]:
    """Returns the examples to measure, and how much a network has seen of a part.

    What it has seen is left out unless `is_measured`. Raises ConfigError, with the sentence
    `remedy`, if nothing is left.
    """
    is_seen = find_seen(seen, dataset.images)[part.rows]
    exposure = expose(seen, dataset.images, part.rows, is_seen, is_measured=is_measured)
    if is_measured or not is_seen.any():
        return part, exposure
    if is_seen.all():
        raise ConfigError(
            f"nothing is left of split {part.name!r} of {dataset.path}: the network has seen all "
            f"its {part.num_examples:,} images, or others of their patients. {remedy}"
        )
    return dataset.narrow(part, ~is_seen), exposure


def look_at(dataset: Dataset, parts: Parts, unknown: str) -> tuple[Seen, Exposure | None]:
    """Returns what a run sees, and how much of that is in the part that it evaluates, if any.

    `unknown` says what is not known of the weights with which it starts, see `Seen`.
    """
    rows = {name: part.rows for name, part in vars(parts).items() if part is not None}
    rows.pop("test", None)
    seen = collect(dataset.images, rows, unknown)
    if parts.evaluated is None:
        return seen, None
    # That validation images were watched is said elsewhere.
    learnt = seen if parts.test else seen.without("val")
    is_seen = find_seen(learnt, dataset.images)[parts.evaluated.rows]
    exposure = expose(learnt, dataset.images, parts.evaluated.rows, is_seen, is_measured=True)
    return seen, exposure
