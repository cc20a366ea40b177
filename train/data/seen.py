"""What a network has seen: the images that its weights, statistics or thresholds depend on.

A run lists them in seen.parquet, which its export does not contain. Whether a network has seen an
image is decided by three intersections: the bytes of files, the pixels, and the patients.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tfrecord_io.format.examples import GROUP, SEEN_FILE_NAME, SEEN_ORIGIN, SITE
from tfrecord_io.format.manifest import Manifest
from tfrecord_io.format.person import Person
from tfrecord_io.stores.files import atomic_write
from tfrecord_io.terminal.errors import UserError
from tfrecord_io.terminal.spelling import one_form
from train.data.dataset import IMAGE_COLUMNS, Dataset, Parts

FILE_NAME = SEEN_FILE_NAME

_TEXT = pa.string()

# Null is unknown. `part` is where an image was used: in train or val, or in the run of --init.
_SCHEMA = pa.schema([(name, _TEXT) for name in (*IMAGE_COLUMNS, "part")])

# Columns that the file has only if something of them is known.
_OPTIONAL = (SITE, "file_xxh3")

# Entries of the file's metadata.
_UNKNOWN, _ORIGIN = b"unknown", SEEN_ORIGIN


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Seen:
    """The images that a network has seen, a row each of the columns of `_SCHEMA`.

    `unknown` says why these may not be all, such as `its first weights are from elsewhere (a.h5)`;
    it is empty if they are. `origin` is what `_origin_of` says of their dataset; empty if unknown.
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

    def num_in(self, part: str) -> int:
        """Returns the number of images of a part."""
        return len(_distinct(self.images.filter(pc.equal(self.images["part"], part))))

    def after(self, first: Seen) -> Seen:
        """Returns this with what the network had seen before, as the part `init`."""
        place = self.images.schema.get_field_index("part")
        part = pa.array(["init"] * len(first.images), _TEXT)
        images = [self.images, first.images.set_column(place, "part", part)]
        # What tells how names compare holds only if it is the same for both.
        same = {name: fact for name, fact in self.origin.items() if first.origin.get(name) == fact}
        unknown = "; ".join(filter(None, dict.fromkeys((first.unknown, self.unknown))))
        return Seen(images=pa.concat_tables(images), unknown=unknown, origin=same)


def read_seen(run: Path) -> Seen:
    """Returns what the network of a run has seen; unknown if there is no list.

    The folder may be the export in that of a run; a copy of the export elsewhere has no list.
    Raises UserError if the file is damaged.
    """
    folder = run.absolute()
    is_export = folder.name == "export" and not (folder / FILE_NAME).exists()
    path = (folder.parent if is_export else folder) / FILE_NAME
    try:
        table = pq.read_table(path)
        facts = table.schema.metadata or {}
        for name in set(_OPTIONAL) - set(table.column_names):
            table = table.append_column(name, pa.nulls(len(table), _TEXT))
        images = table.select(_SCHEMA.names).cast(_SCHEMA)
        origin = json.loads(facts.get(_ORIGIN, b"{}"))
    except FileNotFoundError:
        return Seen(unknown=f"its run has no {FILE_NAME}")
    except (OSError, KeyError, ValueError) as error:
        raise UserError(f"{path} is damaged ({error}); copy it again") from None
    return Seen(images=images, unknown=facts.get(_UNKNOWN, b"").decode(), origin=origin)


def collect(dataset: Dataset, parts: Mapping[str, np.ndarray], unknown: str = "") -> Seen:
    """Returns what a run sees: rows of a dataset, by the name of their part."""
    tables = [
        dataset.images.take(rows).append_column("part", pa.array([name] * len(rows), _TEXT))
        for name, rows in parts.items()
    ]
    images = pa.concat_tables(tables).combine_chunks()
    return Seen(images=images, unknown=unknown, origin=_origin_of(dataset.manifest))


def seen_by(data: Dataset, parts: Parts, weights: str | None, first: Path | None) -> Seen:
    """Returns the images that a run sees, and those that its first weights have seen.

    The `weights` are those of `--weights`; `first` is the run of `--init`.
    """
    unknown = ""
    if weights not in (None, "imagenet", "none"):
        unknown = f"its first weights are from elsewhere ({Path(weights).name})"
    used = {"train": parts.train, "val": parts.val}
    own = collect(data, {name: part.rows for name, part in used.items() if part}, unknown)
    return own.after(read_seen(first)) if first else own


def _origin_of(manifest: Manifest) -> dict[str, str]:
    """Returns what tells whether the names of patients of two datasets can be compared."""
    options = manifest.options
    naming = [options.get("patient_regex"), options.get("anonymize"), bool(options.get("labels"))]
    return {"patients": json.dumps(naming)}


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Exposure:
    """How much of the images that were to be measured a network had seen before.

    Attributes:
        is_seen: which of the images, bool [num_images].
        num_patients: known patients of those.
        is_measured: whether the measures include the images that it has seen.
        num_named: those of which it has seen the name of the patient or group, but no such pixels.
        claims: what it has not seen of the others, such as `no patient of the same name`: only
            what could be compared.
        doubts: why it may have seen more of the others, or of their patients; empty if all could
            be compared.
    """

    is_seen: np.ndarray
    num_patients: int
    is_measured: bool
    num_named: int = 0
    claims: tuple[str, ...] = ()
    doubts: tuple[str, ...] = ()

    @property
    def num_images(self) -> int:
        """The number of images that it has seen."""
        return int(self.is_seen.sum())

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
    def note(self) -> str:
        """What cannot be known, as a sentence without capital and full stop; empty if all is."""
        if not self.doubts:
            return ""
        return (
            "it cannot be known whether the network has seen more of these images, or other images "
            f"of their patients: {'; '.join(self.doubts)}"
        )


def exposure_of(data: Dataset, parts: Parts, seen: Seen) -> Exposure | None:
    """Returns how much a run has seen of the images that measure it; None if no image does."""
    if not parts.evaluated:
        return None
    # That validation images were watched is said elsewhere.
    seen = seen if parts.test else seen.without("val")
    return expose(data, [(seen, parts.evaluated.rows)], is_measured=True)


def expose(
    dataset: Dataset, networks: Sequence[tuple[Seen, np.ndarray]], *, is_measured: bool
) -> Exposure:
    """Counts what networks have seen of the images of a dataset that each is to be measured on.

    Each of `networks` is what a network has seen, and the rows of the images that it is measured
    on. There are several in a cross-validation; they start from the same weights, and their
    datasets are one. `is_measured` tells whether the images that they have seen are measured with
    the others.
    """
    seen, rows = networks[0][0], np.concatenate([rows for _, rows in networks])
    compared = [_compare(each, dataset)[:, rows] for each, rows in networks]
    is_seen, is_named = np.concatenate(compared, axis=1)
    images = dataset.images.take(rows)
    tables = {"that are measured": images if is_measured else images.filter(pa.array(~is_seen))}
    if len(networks) == 1:  # Those of a cross-validation have seen what the others are measured on.
        tables["that it has seen"] = _distinct(seen.images)

    def lacking(column: str, name: str) -> list[str]:
        return [
            f"{count:,} of the {len(table):,} images {which} have no {name}"
            for which, table in tables.items()
            if (count := table[column].null_count)
        ]

    pixels, patients = lacking("pixels_xxh3", "hash of the pixels"), lacking("patient", "patient")
    if seen.origin.get("patients") != _origin_of(dataset.manifest)["patients"]:
        patients.append(
            "its training images name patients in another way (--patient_regex, --labels, "
            "--anonymize), or it is not known how, which does not matter at another hospital"
        )
    unknown = [seen.unknown] if seen.unknown else []
    kinds = {"no image with the same pixels": pixels, "no patient of the same name": patients}
    return Exposure(
        is_seen=is_seen,
        num_patients=pc.count_distinct(images["patient"].filter(pa.array(is_seen))).as_py(),
        is_measured=is_measured,
        num_named=int(is_named.sum()),
        claims=tuple(claim for claim, doubts in kinds.items() if not (doubts or unknown)),
        doubts=(*unknown, *pixels, *patients),
    )


def _distinct(images: pa.Table) -> pa.Table:
    """Returns the images, each once though several networks have seen it."""
    return images.group_by(list(IMAGE_COLUMNS)).aggregate([])


def _compare(seen: Seen, dataset: Dataset) -> np.ndarray:
    """Tells of each image of a dataset what a network has seen of it, bool [2, num_images].

    The first row tells whether it has seen the file, the pixels, the patient or the group, or one
    of these of another image of the group. Of those in the second it has seen no such file or
    pixels, only the name of the patient or group.
    """
    images = dataset.images
    same = (
        pc.is_in(images[name], seen.images[name].drop_null()).to_numpy()
        for name in ("file_xxh3", "pixels_xxh3")
    )
    is_alike = np.logical_or.reduce([*same])
    is_named = _is_same(images, seen.images, GROUP.name) | _is_same(images, seen.images, "patient")
    is_alike, is_seen = (
        found | pc.is_in(images[GROUP.name], images[GROUP.name].filter(pa.array(found))).to_numpy()
        for found in (is_alike, is_alike | is_named)
    )
    return np.stack([is_seen, is_seen & ~is_alike])


def _is_same(images: pa.Table, seen: pa.Table, column: str) -> np.ndarray:
    """Returns whether the group or patient of each image was seen.

    Equal names are the same unless both sites are known and differ.
    """
    known = set(_by_site(seen, column))
    names = {person.name for person in known if person}
    is_same = (
        person is not None
        and person.name in names
        and (not person.site or bool({person, Person("", person.name)} & known))
        for person in _by_site(images, column)
    )
    return np.fromiter(is_same, bool)


def _by_site(table: pa.Table, column: str) -> Iterator[Person | None]:
    """Yields the person of each image, whose site is empty if it is not known; or the group so.

    A build begins the name of a patient with the site. The group of an image can be named after a
    patient of another site.
    """
    sites = set(map(one_form, table[SITE].unique().drop_null().to_pylist()))
    prefix = "patient:" if column == GROUP.name else ""
    for name, own in zip(table[column].to_pylist(), table[SITE].to_pylist(), strict=True):
        person = None if name is None else Person.read(name.removeprefix(prefix), sites)
        if person and not (person.site or prefix):
            person = Person(own or "", person.name)
        yield person
