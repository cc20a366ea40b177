"""What a network has seen: the images that its weights, statistics or thresholds depend on.

A run lists them in seen.parquet, which its export does not contain. A network has seen an image if
it has seen the file, the pixels or the patient, or another image of its group: set intersections.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tfrecord_io.format.examples import GROUP, SEEN_FILE_NAME, SEEN_ORIGIN, SITE
from tfrecord_io.format.person import column_in_one_form
from tfrecord_io.stores.files import atomic_write
from tfrecord_io.terminal.errors import UserError
from train.data.dataset import IMAGE_COLUMNS, Dataset, Parts

FILE_NAME = SEEN_FILE_NAME

#: What can be claimed of images that were compared with all that a network has seen.
NO_PIXELS, NO_PATIENT = "no image with the same pixels", "no patient of the same name"

# Null is unknown. `part` is where an image was used: in train or val, or in the run of --init.
_SCHEMA = pa.schema([(name, pa.string()) for name in (*IMAGE_COLUMNS, "part")])

# Columns that the file has only if something of them is known.
_OPTIONAL = (SITE, "file_xxh3")

# An entry of the file's metadata, beside SEEN_ORIGIN.
_UNKNOWN = b"unknown"


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
        table = table.drop_columns([name for name in _OPTIONAL if not _is_known(table, name)])
        facts = {_UNKNOWN: self.unknown.encode(), SEEN_ORIGIN: json.dumps(dict(self.origin))}
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
        before = first.images.drop_columns("part")
        before = before.append_column("part", pa.array(["init"] * len(before), pa.string()))
        # The names of both can be compared with others only where both got them in the same way.
        same = {name: fact for name, fact in self.origin.items() if first.origin.get(name) == fact}
        unknown = "; ".join(filter(None, dict.fromkeys((first.unknown, self.unknown))))
        return Seen(images=pa.concat_tables([self.images, before]), unknown=unknown, origin=same)


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
            table = table.append_column(name, pa.nulls(len(table), pa.string()))
        images = table.select(_SCHEMA.names).cast(_SCHEMA)
        origin = json.loads(facts.get(SEEN_ORIGIN, b"{}"))
    except FileNotFoundError:
        return Seen(unknown=f"its run has no {FILE_NAME}")
    except (OSError, KeyError, ValueError) as error:
        raise UserError(f"{path} is damaged ({error}); copy it again") from None
    return Seen(images=images, unknown=facts.get(_UNKNOWN, b"").decode(), origin=origin)


def seen_by(data: Dataset, parts: Parts, weights: str | None, first: Path | None) -> Seen:
    """Returns the images that a run sees, and those that its first weights have seen.

    The `weights` are those of `--weights`; `first` is the run of `--init`.
    """
    unknown = ""
    if weights not in (None, "imagenet", "none"):
        unknown = f"its first weights are from elsewhere ({Path(weights).name})"
    used = {"train": parts.train, "val": parts.val}
    rows = {name: part.rows for name, part in used.items() if part}
    names = pa.array(np.repeat([*rows], [*map(len, rows.values())]), pa.string())
    images = data.images.take(np.concatenate([*rows.values()])).append_column("part", names)
    own = Seen(images=images.combine_chunks(), unknown=unknown, origin=_origin_of(data))
    return own.after(read_seen(first)) if first else own


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Exposure:
    """How much of the images that were to be measured a network had seen before.

    Attributes:
        is_seen: which of the images, bool [num_images].
        num_patients: known patients of those.
        is_measured: whether the measures include the images that it has seen.
        claims: of `NO_PIXELS` and `NO_PATIENT`, what could be compared and was not found.
        doubts: why it may have seen more of the others, or of their patients.
    """

    is_seen: np.ndarray
    num_patients: int
    is_measured: bool
    claims: tuple[str, ...] = ()
    doubts: tuple[str, ...] = ()

    @property
    def num_images(self) -> int:
        """The number of images that it has seen."""
        return int(self.is_seen.sum())

    @property
    def note(self) -> str:
        """What cannot be known, as a sentence without capital and full stop; empty if all is."""
        known = "it cannot be known whether the network has seen more of these images, or other "
        return f"{known}images of their patients: {'; '.join(self.doubts)}" if self.doubts else ""


def expose(
    dataset: Dataset, networks: Sequence[tuple[Seen, np.ndarray]], *, is_measured: bool
) -> Exposure:
    """Counts what networks have seen of the images of a dataset that each is to be measured on.

    Of each network there is what it has seen, and the rows of the images that it is measured on. A
    cross-validation has several, whose datasets and first weights are the same. `is_measured` says
    whether the images that they have seen are measured with the others.
    """
    seen, rows = networks[0][0], np.concatenate([rows for _, rows in networks])
    is_seen = np.concatenate([_is_seen(dataset.images, each)[rows] for each, rows in networks])
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
    # A build begins the name of a patient with the site, where that is known.
    is_by_site = _is_known(images, SITE) == _is_known(seen.images, SITE)
    if seen.origin.get("patients") != _origin_of(dataset)["patients"] or not is_by_site:
        patients.append(
            "its training images name patients in another way (--patient_regex, --labels, a column "
            "site, --anonymize), or it is not known how, which does not matter at another hospital"
        )
    unknown = [seen.unknown] if seen.unknown else []
    kinds = {NO_PIXELS: pixels, NO_PATIENT: patients}
    return Exposure(
        is_seen=is_seen,
        num_patients=pc.count_distinct(images["patient"].filter(pa.array(is_seen))).as_py(),
        is_measured=is_measured,
        claims=tuple(claim for claim, doubts in kinds.items() if not (doubts or unknown)),
        doubts=(*unknown, *pixels, *patients),
    )


def _is_seen(images: pa.Table, seen: Seen) -> np.ndarray:
    """Tells of each image whether a network has seen it, or one of its group, bool [num_images]."""

    def is_in(column: str, values: pa.ChunkedArray) -> np.ndarray:
        values = column_in_one_form(values.drop_null())
        return np.asarray(pc.is_in(column_in_one_form(images[column]), values))

    columns = ("file_xxh3", "pixels_xxh3", "patient", GROUP.name)
    found = np.logical_or.reduce([is_in(name, seen.images[name]) for name in columns])
    return found | is_in(GROUP.name, images[GROUP.name].filter(pa.array(found)))


def _origin_of(dataset: Dataset) -> dict[str, str]:
    """Returns what must be equal for the names of patients of two datasets to be compared."""
    options = dataset.manifest.options
    naming = [options.get("patient_regex"), options.get("anonymize"), bool(options.get("labels"))]
    return {"patients": json.dumps(naming)}


def _distinct(images: pa.Table) -> pa.Table:
    """Returns the images, each once though several networks have seen it."""
    return images.group_by(list(IMAGE_COLUMNS)).aggregate([])


def _is_known(images: pa.Table, column: str) -> bool:
    """Tells whether something of a column is known."""
    return images[column].null_count < len(images)
