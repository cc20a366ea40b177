"""What a network has seen: the images that its weights, statistics or thresholds depend on.

A run lists them in seen.parquet, which its export does not contain.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tfrecord_io.auditing import twins
from tfrecord_io.format.examples import GROUP, HASH, IDENTITY, SITE
from tfrecord_io.format.manifest import Manifest
from tfrecord_io.format.side_facts import HASH_LENGTH
from tfrecord_io.stores.files import atomic_write
from train.data.dataset import Dataset, Part, Parts
from train.machine.errors import ConfigError

FILE_NAME = "seen.parquet"

_TEXT = pa.string()

# Null is unknown. `part` is where an image was used: in train or val.
_SCHEMA = pa.schema(
    [*((name, _TEXT) for name in (*IDENTITY, "part")), (HASH, pa.binary(HASH_LENGTH))]
)

# Columns that the file has only if something of them is known.
_OPTIONAL = (SITE, HASH)

# Entries of the file's metadata.
_UNKNOWN, _ORIGIN = b"unknown", b"origin"

# A picture that looks like more others than this is of a crowd, such as one of a fixed frame; of
# such pictures the hashes do not tell which are copies.
_CROWD = 16


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Seen:
    """The images that a network has seen, a row each of the columns of `_SCHEMA`.

    `unknown` says why these may not be all, such as `its first weights are from elsewhere (a.h5)`;
    it is empty if they are. `origin` is what `origin_of` says of their dataset; empty if unknown.
    """

    images: pa.Table = dataclasses.field(default_factory=_SCHEMA.empty_table)
    unknown: str = ""
    origin: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def write(self, path: Path, *, is_private: bool = False) -> None:
        """Writes the file, for its owner only if it `is_private`."""
        table = self.images
        table = table.drop_columns(
            [name for name in _OPTIONAL if table[name].null_count == len(table)]
        )
        facts = {_UNKNOWN: self.unknown.encode(), _ORIGIN: json.dumps(dict(self.origin)).encode()}
        with atomic_write(path, is_private=is_private) as file:
            pq.write_table(table.replace_schema_metadata(facts), file)

    def without(self, part: str) -> Seen:
        """Returns the images of all parts but one."""
        images = self.images.filter(pc.not_equal(self.images["part"], part))
        return dataclasses.replace(self, images=images)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Exposure:
    """How much of what was to be measured a network had seen before: images, known patients.

    Attributes:
        num_named: those of the images of which only the patient's name was seen.
        is_measured: whether the measures include these images.
        claims: what it has not seen of the others, such as `no patient of the same name`: only
            what could be compared.
        doubts: why it may have seen more of the others, or of their patients; empty if all could
            be compared.
    """

    num_images: int
    num_patients: int
    is_measured: bool
    num_named: int = 0
    claims: tuple[str, ...] = ()
    doubts: tuple[str, ...] = ()

    @property
    def advice(self) -> str:
        """What to do if patients have the same names by chance; empty if none was named only."""
        if not self.num_named:
            return ""
        return (
            f"Of {self.num_named:,} of these it has seen no such pixels, only the name of the "
            "patient; if these are patients of another hospital, build both datasets with a column "
            "site in the table of --labels"
        )

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
        for name in set(_OPTIONAL) - set(table.column_names):
            table = table.append_column(name, pa.nulls(len(table), _SCHEMA.field(name).type))
        images = table.select(_SCHEMA.names).cast(_SCHEMA)
        origin = json.loads(facts.get(_ORIGIN, b"{}"))
    except FileNotFoundError:
        return None
    except (OSError, KeyError, ValueError) as error:
        raise ConfigError(f"{path} is damaged ({error}); copy it again") from None
    return Seen(images=images, unknown=facts.get(_UNKNOWN, b"").decode(), origin=origin)


def collect(dataset: Dataset, parts: Mapping[str, np.ndarray], unknown: str = "") -> Seen:
    """Returns what a run sees: rows of a dataset, by the name of their part."""
    tables = [
        dataset.images.take(rows)
        .append_column("part", pa.array([name] * len(rows), _TEXT))
        .select(_SCHEMA.names)
        for name, rows in parts.items()
    ]
    images = pa.concat_tables(tables).combine_chunks()
    return Seen(images=images, unknown=unknown, origin=origin_of(dataset.manifest))


def origin_of(manifest: Manifest) -> dict[str, str]:
    """Returns what tells which names and pictures of two datasets can be compared.

    `patients` is how the patients got their names. Within one `dataset` the build has compared the
    pixels of pictures that look alike.
    """
    options = manifest.options
    naming = [options.get("group_regex"), options.get("anonymize"), "labels" in options]
    return {"dataset": manifest.fingerprint, "patients": json.dumps(naming)}


class Found(NamedTuple):
    """What a network has seen of some images, each bool [num_images].

    Of `is_named` it has seen the name of the patient or group, but no such pixels. Whether it has
    seen those of `is_crowded` cannot be told, because they look like too many that it has seen.
    """

    is_seen: np.ndarray
    is_named: np.ndarray
    is_crowded: np.ndarray

    def take(self, rows: np.ndarray) -> Found:
        """Returns the same of some of the images."""
        return Found(*(values[rows] for values in self))


def find_seen(seen: Seen, dataset: Dataset) -> Found:
    """Tells of each image of a dataset whether a network has seen it.

    It has if it has seen the same or nearly the same pixels, the group or the patient, or in one
    of these ways another image of the group.
    """
    images = dataset.images
    is_alike = pc.is_in(images["pixels_xxh3"], seen.images["pixels_xxh3"].drop_null()).to_numpy()
    is_crowded = np.zeros(len(is_alike), bool)
    if not _is_own(seen, dataset):
        rows = np.flatnonzero(pc.is_valid(images[HASH]).to_numpy() & ~is_alike)
        known = twins.hashes_in(pa.table({HASH: seen.images[HASH].drop_null().unique()}))
        num_near = twins.count_near(twins.hashes_in(images.take(rows)), known)
        is_crowded[rows] = num_near > _CROWD
        is_alike[rows] = (num_near > 0) & (num_near <= _CROWD)
    is_named = _is_same(images, seen.images, GROUP.name) | _is_same(images, seen.images, "patient")
    is_alike, is_seen = (
        found | pc.is_in(images[GROUP.name], images[GROUP.name].filter(pa.array(found))).to_numpy()
        for found in (is_alike, is_alike | is_named)
    )
    return Found(is_seen, is_seen & ~is_alike, is_crowded & ~is_seen)


def _is_own(seen: Seen, dataset: Dataset) -> bool:
    """Tells whether a network was trained on this dataset."""
    return seen.origin.get("dataset") == dataset.manifest.fingerprint


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
    prefix = "patient:" if column == GROUP.name else ""
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
    seen: Seen, dataset: Dataset, rows: np.ndarray, found: Found, *, is_measured: bool
) -> Exposure:
    """Counts what a network has seen of some rows of a dataset.

    What it has seen of them is in `found`; `is_measured` tells whether these are measured with the
    others.
    """
    images = dataset.images
    measured = images.take(rows if is_measured else rows[~found.is_seen])
    tables = ((measured, "that are measured"), (seen.images, "that it has seen"))

    def lacking(column: str, name: str) -> list[str]:
        return [
            f"{count:,} of the {len(table):,} images {which} have no {name}"
            for table, which in tables
            if (count := table[column].null_count)
        ]

    pixels = lacking("pixels_xxh3", "hash of the pixels")
    if _is_own(seen, dataset):
        measures = dataset.manifest.audit.get("measures", {})
        is_known = measures.get("near_duplicates_complete")
        near = [] if is_known else ["nearly equal images were not all looked for, see the audit"]
    else:
        near = lacking(HASH, "perceptual hash, by which saved copies are found from 64 pixels on")
    if count := int(found.is_crowded.sum()):
        near.append(f"{count:,} of the images look like too many that it has seen")
    patients = lacking("patient", "patient")
    if seen.origin.get("patients") != origin_of(dataset.manifest)["patients"]:
        patients.append(
            "its training images name patients in another way (--group_regex, --labels, "
            "--anonymize), or it is not known how"
        )
    claims = []
    if not (pixels or seen.unknown):
        claims = [f"no image with the same {'' if near else 'or nearly the same '}pixels"]
    if not (patients or seen.unknown):
        claims.append("no patient of the same name")
    return Exposure(
        num_images=int(found.is_seen.sum()),
        num_patients=pc.count_distinct(images["patient"].take(rows[found.is_seen])).as_py(),
        num_named=int(found.is_named.sum()),
        is_measured=is_measured,
        claims=tuple(claims),
        doubts=tuple([seen.unknown] * bool(seen.unknown) + pixels + near + patients),
    )


def expose_folds(dataset: Dataset, folds: Sequence[tuple[Seen, Part]]) -> Exposure:
    """Counts what each run of a cross-validation has seen of the fold that it held out."""
    rows = np.concatenate([fold.rows for _, fold in folds])
    parts = [find_seen(seen, dataset).take(fold.rows) for seen, fold in folds]
    found = Found(*map(np.concatenate, zip(*parts, strict=True)))
    # All start from the same weights.
    start = dataclasses.replace(folds[0][0], images=_SCHEMA.empty_table())
    return expose(start, dataset, rows, found, is_measured=True)


def unseen_part(
    dataset: Dataset, part: Part, seen: Seen, *, is_measured: bool, remedy: str
) -> tuple[Part, Exposure]:
    """Returns the examples to measure, and how much a network has seen of a part.

    What it has seen is left out unless `is_measured`. Raises ConfigError, with the sentence
    `remedy`, if nothing is left.
    """
    found = find_seen(seen, dataset).take(part.rows)
    exposure = expose(seen, dataset, part.rows, found, is_measured=is_measured)
    if is_measured or not found.is_seen.any():
        return part, exposure
    if found.is_seen.all():
        advice = f" {exposure.advice}." if exposure.advice else ""
        raise ConfigError(
            f"nothing is left of split {part.name!r} of {dataset.path}: the network has seen all "
            f"its {part.num_examples:,} images, or others of their patients.{advice} {remedy}"
        )
    return dataset.narrow(part, ~found.is_seen), exposure


def look_at(dataset: Dataset, parts: Parts, unknown: str) -> tuple[Seen, Exposure | None]:
    """Returns what a run sees, and how much of that is in the part that it evaluates, if any.

    `unknown` says what is not known of the weights with which it starts, see `Seen`.
    """
    rows = {name: part.rows for name, part in vars(parts).items() if part is not None}
    rows.pop("test", None)
    seen = collect(dataset, rows, unknown)
    if parts.evaluated is None:
        return seen, None
    # That validation images were watched is said elsewhere.
    learnt = seen if parts.test else seen.without("val")
    found = find_seen(learnt, dataset).take(parts.evaluated.rows)
    return seen, expose(learnt, dataset, parts.evaluated.rows, found, is_measured=True)
