"""Finds the split and the class of each file of a source: from its folders, or from a table.

>>> place_folders({"oct/train/CNV/left/": True, "oct/": False})
{'oct/train/CNV/left/': Place(root='oct', split='train', label='CNV')}
>>> place_folders({"scans/CNV/": True, "scans/DME/": True})["scans/DME/"]
Place(root='scans', split='train', label='DME')
"""

from __future__ import annotations

import collections
import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from pipelines import errors
from pipelines.listing.label_table import LabelTable, match_files
from pipelines.listing.members import (
    IMAGE_SUFFIXES,
    TEXT_ENDINGS,
    ending,
    has_suffix,
    ignored_reason,
    looks_like_image,
    problem_of,
)
from pipelines.listing.refs import BATCH_ROWS, OTHERS, REF_SCHEMA, SITE, RejectedFile
from pipelines.sources.member import Member
from tfrecord_io.printing import printable
from tfrecord_io.rejects import MAX_DETAIL_LENGTH

#: The splits, by the names that folders and tables use for them, in lower case.
SPLITS = {
    "train": "train", "training": "train",
    "val": "val", "valid": "val", "validation": "val", "dev": "val",
    "test": "test", "testing": "test",
}  # fmt: skip

# What is kept of a file, in 40 bytes instead of the 400 of Python objects.
_KEPT = Member._fields[:5]  # from the name to the version
_FILE_SCHEMA = pa.schema([("name", pa.large_string()), *map(REF_SCHEMA.field, _KEPT[1:])])

_NO_TEXT = pa.scalar("", pa.large_string())


class Sorter:
    """Finds the split and class of each file, and sets aside those that are not images.

    First `add` takes all files, then `place` places them by their folders, or `place_by_table` by
    a table.

    Args:
        has_folders: whether folders may name splits.

    Attributes:
        num_files: number of files seen.
        rejects: files that should be images but cannot be used.
        ignored: number of files that are not data, by reason.
        num_repeated_rows: number of rows of a table that repeat another one.
    """

    def __init__(self, *, has_folders: bool = True) -> None:
        self._has_folders = has_folders
        self.num_files = self.num_repeated_rows = 0
        self.rejects: list[RejectedFile] = []
        self.ignored: collections.Counter[str] = collections.Counter()
        self._batches: list[pa.RecordBatch] = []
        self._rows: list[tuple[object, ...]] = []

    def add(self, member: Member) -> None:
        """Counts a file, and keeps it if nothing in its name or size speaks against it."""
        self.num_files += 1
        name = member.name
        if reason := ignored_reason(name):
            self.ignored[reason] += 1
        elif problem := problem_of(member):
            self._reject(name, *problem)
        elif self._has_folders and ending(name) in TEXT_ENDINGS:
            self.ignored["no_image_name"] += 1
        else:
            self._rows.append(member[: len(_KEPT)])
            if len(self._rows) == BATCH_ROWS:
                self._flush()

    def place(self) -> pa.Table:
        """Returns the remaining files with their tree, split and class; sets aside the others."""
        files = self._files()
        names = files["name"].combine_chunks()
        encoded = pc.replace_substring_regex(names, "[^/]*$", "").dictionary_encode()
        folders, codes = encoded.dictionary.to_pylist(), encoded.indices
        with_images = set(codes.filter(has_suffix(names, IMAGE_SUFFIXES)).unique().to_pylist())
        found = place_folders({name: code in with_images for code, name in enumerate(folders)})
        places = [found.get(folder) for folder in folders]
        is_placed = pa.array([place is not None for place in places], pa.bool_()).take(codes)
        layout = "SPLIT/CLASS" if any(map(_split_folders, folders)) else "CLASS"
        for name in names.filter(pc.invert(is_placed)).to_pylist():
            self._set_aside(name, f"lies outside the {layout} folders")
        codes = codes.filter(is_placed)
        columns = {
            name: pa.array([place and getattr(place, name) for place in places], pa.string())
            for name in Place._fields
        }
        inner = [
            place and folder.removeprefix(f"{place.root}/")
            for folder, place in zip(folders, places, strict=True)
        ]
        bases = pc.replace_substring_regex(names.filter(is_placed), "(?s)^.*/", "")
        return _with_columns(
            files.filter(is_placed),
            path=pc.binary_join_element_wise(
                pa.array(inner, pa.large_string()).take(codes), bases, _NO_TEXT
            ),
            **{name: values.take(codes) for name, values in columns.items()},
        )

    def place_by_table(self, labels: LabelTable, tree: str | None) -> pa.Table:
        """Returns the files that a table gives a label, with what it says; sets aside the others.

        Files outside the folder `tree`, if there is one, are left out.

        Raises:
            errors.UserError: if a row names a split that cannot be.
        """
        files = self._files()
        if tree is not None:
            start = f"/{tree.strip(' /')}/"
            inside = [f"/{name}".startswith(start) for name in files["name"].to_pylist()]
            self.ignored["other_tree"] += inside.count(False)
            files = files.filter(pa.array(inside, pa.bool_()))
        names = files["name"].to_pylist()
        row_of_file, without_file, self.num_repeated_rows = match_files(names, labels)
        # A file without a row counts as an image if one with a row has the same ending. The files
        # of a DICOM export have none.
        endings = {
            ending(name) for name, row in zip(names, row_of_file, strict=True) if row is not None
        }
        for row, why in without_file:
            self.num_files += 1
            self._reject(labels.path[row], "missing_file", f"row {row + 1} of {labels.name}: {why}")
        chosen: dict[int, int] = {}
        for place, (name, row) in enumerate(zip(names, row_of_file, strict=True)):
            if row is None:
                is_image = ending(name) in endings
                self._set_aside(name, f"{labels.name} has no row for it", is_image=is_image)
            elif row in labels.not_numbers:
                detail = f"row {row + 1} of {labels.name} has {labels.not_numbers[row]!a}"
                self._reject(name, "not_a_number", detail)
            elif not labels.label[row]:
                detail = f"row {row + 1} of {labels.name} has no label (see --missing)"
                self._reject(name, "no_label", detail)
            else:
                chosen[place] = row
        folders = {names[place].rpartition("/")[0] for place in chosen}
        root = "/".join(_common_folders(folders))
        rows = list(chosen.values())
        told = {"label": labels.label, "patient": labels.patient, SITE: labels.site}
        table = _with_columns(
            files.take(pa.array(chosen, pa.int64())),
            root=[root] * len(rows),
            path=[names[place].removeprefix(f"{root}/") for place in chosen],
            split=[_split_of(labels, row) for row in rows],
            **{name: [values[row] for row in rows] for name, values in told.items() if values},
        )
        if labels.others is None:
            return table
        return table.append_column(
            OTHERS, labels.others.take(pa.array(rows, pa.int64())).to_struct_array()
        )

    def _flush(self) -> None:
        columns = zip(*self._rows, strict=True) if self._rows else [()] * len(_FILE_SCHEMA)
        arrays = [pa.array(v, f.type) for v, f in zip(columns, _FILE_SCHEMA, strict=True)]
        self._batches.append(pa.RecordBatch.from_arrays(arrays, schema=_FILE_SCHEMA))
        self._rows = []

    def _files(self) -> pa.Table:
        self._flush()
        return pa.Table.from_batches(self._batches).combine_chunks()

    def _reject(self, name: str, reason: str, detail: str) -> None:
        detail = printable(detail, MAX_DETAIL_LENGTH)
        self.rejects.append(RejectedFile(printable(name), reason, detail))

    def _set_aside(self, name: str, detail: str, *, is_image: bool = False) -> None:
        if is_image or looks_like_image(name):
            self._reject(name, "no_label", detail)
        else:
            self.ignored["no_image_name"] += 1


class Place(NamedTuple):
    """What a folder says of its files: their tree (the folders above the split), split, class."""

    root: str
    split: str
    label: str


def place_folders(folders: Mapping[str, bool]) -> dict[str, Place]:
    """Finds the split and class of each folder; those without one are absent.

    The split folder of a file is the outermost that is some image's innermost one. So
    train/train/CNV/1.png is in the inner `train`, unless there is a train/DME/2.png: then the outer
    folder is the split and the inner `train` is a class.

    Args:
        folders: whether each folder holds images, by its path, which ends with `/`.
    """
    splits = {folder: found for folder in folders if (found := _split_folders(folder))}
    if not splits:
        images = {folder[:-1] for folder, has_images in folders.items() if has_images}
        shallowest = min((folder.count("/") + bool(folder) for folder in images), default=0)
        # If all images are in one folder, that folder is the class.
        depth = max(min(len(_common_folders(images)), shallowest - 1), 0)
        parts = {folder: folder.split("/")[:-1] for folder in folders}
        return {
            folder: Place("/".join(names[:depth]), "train", names[depth])
            for folder, names in parts.items()
            if len(names) > depth
        }
    innermost = {found[-1] for folder, found in splits.items() if folders[folder]}
    # A file that is not an image, such as train/labels/labels.npy, must not choose a folder above
    # those of the images.
    above = {
        "/".join(parts[:depth])
        for parts in (level.split("/") for level in innermost)
        for depth in range(1, len(parts))
    }
    chosen = innermost | ({found[-1] for found in splits.values()} - above)
    places = {}
    for folder, found in splits.items():
        if level := next((level for level in found if level in chosen), None):
            root, _, name = level.rpartition("/")
            label = folder[len(level) + 1 :].partition("/")[0]
            places[folder] = Place(root, SPLITS[name.lower()], label)
    return places


def _split_folders(folder: str) -> list[str]:
    """Returns the folders on a path that are named as a split and hold another one of the path."""
    parts = folder.split("/")[:-2]
    depths = (depth for depth, part in enumerate(parts, 1) if part.lower() in SPLITS)
    return ["/".join(parts[:depth]) for depth in depths]


def _common_folders(folders: Iterable[str]) -> list[str]:
    """Returns the names of the folders that hold all these, outermost first."""
    parts = [folder.split("/") if folder else [] for folder in folders]
    if not parts:
        return []
    pairs = zip(min(parts), max(parts), strict=False)
    return [name for name, _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs)]


def _split_of(labels: LabelTable, row: int) -> str:
    """Returns the split that a row names; `train` in a table without splits."""
    if labels.split is None:
        return "train"
    try:
        return split_called(labels.split[row] or "")
    except ValueError as error:
        raise errors.UserError(f"--labels {labels.name}: row {row + 1:,} has {error}") from None


def split_called(name: str) -> str:
    """Returns the split that a table or a user calls so: `val` for `Validation`.

    Raises:
        ValueError: if no split can have the name.
    """
    split = SPLITS.get(name.lower(), name)
    if not re.fullmatch(r"[a-z][a-z0-9_]*", split):
        raise ValueError(
            f"the split {name!a}; expected train, val, test or another name of lower-case letters, "
            "digits and underscores"
        )
    return split


def _with_columns(files: pa.Table, **columns: pa.Array | Sequence[str | None]) -> pa.Table:
    """Returns files with columns of the references in place of their names."""
    num_rows = files.num_rows
    table = files.drop_columns("name").append_column("frame", pa.nulls(num_rows, pa.int32()))
    columns = {"patient": [None] * num_rows, **columns}
    for name, values in columns.items():
        is_plain = name in ("path", "patient")
        array = pa.array(values, pa.large_string() if is_plain else pa.string())
        table = table.append_column(name, array if is_plain else array.dictionary_encode())
    return table
