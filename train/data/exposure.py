"""How much of what is to be measured a network has seen before, and what of it is left out."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tfrecord_io.groups import COLUMN
from train.data.dataset import Dataset
from train.data.parts import Parts
from train.data.seen import Seen, collect
from train.errors import ConfigError


@dataclasses.dataclass(frozen=True, kw_only=True)
class Exposure:
    """How much of what was to be measured a network had seen before.

    Attributes:
        num_images: images that it had seen.
        num_patients: known patients of these images.
        is_measured: whether the measures include these images.
        doubts: why it may have seen more of the others, or of their patients; empty if it is
            proven that it has not.
    """

    num_images: int
    num_patients: int
    is_measured: bool
    doubts: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Returns the entries of metrics.json."""
        return {
            "seen_images": self.num_images,
            "seen_patients": self.num_patients,
            "include_seen": self.is_measured,
        }

    @property
    def note(self) -> str | None:
        """What cannot be known, as a sentence without capital and full stop; None if all is."""
        if not self.doubts:
            return None
        return (
            "it cannot be known whether the network has seen more of these images, or other images "
            f"of their patients: {'; '.join(self.doubts)}"
        )


def expose(
    seen: Seen, images: pa.Table, rows: np.ndarray, is_seen: np.ndarray, *, is_measured: bool
) -> Exposure:
    """Counts what a network has seen of some images of a dataset.

    Args:
        seen: what the network has seen.
        images: of the dataset, see `Dataset.images`.
        rows: int64 [num_rows], rows of `images`.
        is_seen: bool [num_rows], which of them it has seen, see `find_seen`.
        is_measured: whether these are measured with the others.
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


def find_seen(seen: Seen, images: pa.Table) -> np.ndarray:
    """Returns bool [num_images]: whether a network has seen each image of a dataset.

    It has if it has seen the same pixels, the group or the patient, or in one of these ways
    another image of the group.

    Args:
        seen: what the network has seen.
        images: of the whole dataset, see `Dataset.images`.
    """
    found = pc.is_in(images["pixels_xxh3"], seen.images["pixels_xxh3"].drop_null())
    for name in (COLUMN, "patient"):
        found = pc.or_(found, _is_same(images, seen.images, name))
    groups = images[COLUMN].filter(found).drop_null()
    return pc.or_(found, pc.is_in(images[COLUMN], groups)).to_numpy()


def _is_same(images: pa.Table, seen: pa.Table, column: str) -> pa.ChunkedArray:
    """Returns whether the group or patient of each image was seen.

    Equal names are the same unless both sites are known and differ.
    """
    (names, sites), (seen_names, seen_sites) = _by_site(images, column), _by_site(seen, column)
    separator = pa.scalar("\0", pa.string())
    named = pc.binary_join_element_wise(sites, names, separator)
    seen_named = pc.binary_join_element_wise(seen_sites, seen_names, separator)
    siteless = seen_names.filter(pc.is_null(seen_sites))
    # A missing value is in no set, because the sets have none.
    same_site = pc.is_in(named, seen_named.drop_null())
    one_siteless = pc.is_in(names, siteless.drop_null())
    other_siteless = pc.and_(pc.is_null(sites), pc.is_in(names, seen_names.drop_null()))
    return pc.or_(same_site, pc.or_(one_siteless, other_siteless))


def _by_site(table: pa.Table, column: str) -> tuple[pa.ChunkedArray, pa.ChunkedArray]:
    """Returns the names of patients or groups without their site, and the sites.

    A build begins the name of a patient with the site. The group of an image can be named after a
    patient of another site.
    """
    sites = set(pc.unique(table["site"]).to_pylist()) - {None}
    if not sites:
        return table[column], table["site"]
    prefix = "patient:" if column == COLUMN else ""
    names, of_site = [], []
    rows = (table[name].to_pylist() for name in (column, "patient", "site"))
    for name, patient, own in zip(*rows, strict=True):
        site = None
        if name is not None and name.startswith(prefix):
            person = name.removeprefix(prefix)
            site = own if person == patient else person.partition("/")[0]
            site = site if site in sites else None
            name = prefix + (person.removeprefix(f"{site}/") if site else person)
        names.append(name)
        of_site.append(site)
    return (pa.chunked_array([names], pa.string()), pa.chunked_array([of_site], pa.string()))


def look_at(
    dataset: Dataset, parts: Parts, below: Seen, *, is_fold: bool
) -> tuple[Parts, Seen, Exposure | None]:
    """Leaves out the test images that a run has seen, if its trunk has seen any of them.

    A run without a trunk measures the whole split, and its page says how much was seen.

    Args:
        dataset: of the run.
        parts: of it.
        below: what the weights have seen with which the training starts.
        is_fold: whether the test part is a fold of a cross-validation.

    Returns:
        (the parts with the images that are left, what the run sees, how much it sees of the part
        that it evaluates; None if there is none).

    Raises:
        ConfigError: if nothing is left, or the trunk has seen any of the images of the folds.
    """
    images = dataset.images
    rows = {
        name: dataset.rows(part)
        for name, part in (("train", parts.train), ("val", parts.val), ("test", parts.test))
        if part is not None
    }
    seen = collect(images, {name: rows[name] for name in rows if name != "test"}, below)
    if parts.evaluated is None:
        return parts, seen, None
    by_trunk = find_seen(below, images)
    if is_fold and (num_seen := int(by_trunk[np.concatenate(list(rows.values()))].sum())):
        raise ConfigError(
            f"--folds: the trunk of {dataset.path} has seen {num_seen:,} of the images, or of "
            "their patients, so the held-out folds would measure what it has learned. Use a trunk "
            "that was trained on other images"
        )
    if parts.test is None:
        # That validation images were watched is said elsewhere.
        is_seen = find_seen(seen.without("val"), images)[rows["val"]]
        return parts, seen, expose(seen, images, rows["val"], is_seen, is_measured=True)
    is_seen = find_seen(seen, images)[rows["test"]]
    is_measured = not by_trunk[rows["test"]].any()
    exposure = expose(seen, images, rows["test"], is_seen, is_measured=is_measured)
    if is_measured:
        return parts, seen, exposure
    if is_seen.all():
        raise ConfigError(
            f"all {len(is_seen):,} images of {parts.test.name}, or others of their patients, were "
            f"seen by the trunk of {dataset.path} or are in training, so nothing is left to "
            "measure. Use a trunk that was trained on other images"
        )
    test = dataset.narrow(parts.test, ~is_seen)
    return dataclasses.replace(parts, test=test), seen, exposure
