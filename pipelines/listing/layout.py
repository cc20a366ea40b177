"""Finds the split and the class of each file of a source: from its folders, or from a table."""

from __future__ import annotations

import collections
import functools
import itertools
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from pipelines import errors
from pipelines.listing.label_table import LabelTable, match_files
from pipelines.listing.members import (
    ending,
    has_plain_name,
    ignored_reason,
    is_text,
    looks_like_image,
    name_problem,
    size_problem,
)
from pipelines.listing.refs import BATCH_ROWS, OTHERS, SITE, RejectedFile
from pipelines.sources.member import Member
from tfrecord_io.printing import printable
from tfrecord_io.rejects import MAX_DETAIL_LENGTH

#: The splits, by the names that folders and tables use for them, in lower case.
SPLITS = {
    "train": "train", "training": "train",
    "val": "val", "valid": "val", "validation": "val", "dev": "val",
    "test": "test", "testing": "test",
}  # fmt: skip


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
        self._with_split = _Columns()
        self._without_split = _Columns()
        self._image_levels: set[str] = set()
        self._other_levels: set[str] = set()
        self._has_nested_levels = False

    def add(self, member: Member) -> None:
        """Counts a file, and keeps it if nothing in its name or size speaks against it."""
        self.num_files += 1
        name = member.name
        base = name.rpartition("/")[2]
        folder = _folder_of(name[: len(name) - len(base)])
        # A fast path: nearly all names are plain and need no further check.
        is_plain = folder.is_plain and has_plain_name(base)
        if not is_plain and (reason := ignored_reason(name.split("/"))):
            self.ignored[reason] += 1
        elif (
            problem := member.problem
            or (None if is_plain else name_problem(name, name.split("/")))
            or size_problem(member)
        ):
            self._reject(name, *problem)
        elif self._has_folders and is_text(base):
            self.ignored["no_image_name"] += 1
        elif folder.levels and self._has_folders:
            self._with_split.add(member, _parent(folder.levels[0]))
            self._note_level(folder, name)
        else:
            self._without_split.add(member, "")

    def place(self) -> pa.Table:
        """Returns the remaining files with their tree, split and class; sets aside the others."""
        if self._has_nested_levels:
            self._choose_levels()
        if self._with_split.num_rows:
            for member in self._without_split.members():
                self._set_aside(member.name, "lies outside the SPLIT/CLASS folders")
            table = self._with_split.table()
            place = pc.index_in(pc.ascii_lower(folder_at(table, 0)), pa.array(list(SPLITS)))
            split = pa.array(list(SPLITS.values())).take(place)
            return _with_columns(table, split, folder_at(table, 1))
        return self._place_by_class()

    def _note_level(self, folder: _Folder, name: str) -> None:
        """Remembers the innermost split folder of a file, the split if all images agree."""
        self._has_nested_levels |= len(folder.levels) > 1
        innermost = folder.levels[-1]
        if innermost in self._image_levels:
            return
        levels = self._image_levels if looks_like_image(name) else self._other_levels
        levels.add(innermost)

    def _choose_levels(self) -> None:
        """Chooses the split folder of each file: the outermost that is some image's innermost one.

        So train/train/CNV/1.png is in the inner `train`, unless there is a train/DME/2.png: then
        the outer folder is the split and the inner `train` is a class.
        """
        # A file that is not an image, such as train/labels/labels.csv, must not choose a folder
        # above those of the images.
        above = {
            "/".join(parts[:depth])
            for parts in (level.split("/") for level in self._image_levels)
            for depth in range(1, len(parts))
        }
        chosen = self._image_levels | (self._other_levels - above)
        columns = _Columns()
        for member in self._with_split.members():
            base = member.name.rpartition("/")[2]
            levels = _folder_of(member.name[: len(member.name) - len(base)]).levels
            level = next((level for level in levels if level in chosen), None)
            if level is None:
                self._set_aside(member.name, "lies outside the SPLIT/CLASS folders")
            else:
                columns.add(member, _parent(level))
        self._with_split = columns

    def _place_by_class(self) -> pa.Table:
        depth = _common_depth([member.name for member in self._without_split.members()])
        columns = _Columns()
        for member in self._without_split.members():
            if member.name.count("/") > depth:
                columns.add(member, "/".join(member.name.split("/", depth)[:depth]))
            else:
                self._set_aside(member.name, "lies outside the CLASS folders")
        table = columns.table()
        return _with_columns(table, pa.repeat("train", table.num_rows), folder_at(table, 0))

    def place_by_table(self, labels: LabelTable, tree: str | None) -> pa.Table:
        """Returns the files that a table gives a label, with what it says; sets aside the others.

        Files outside the folder `tree`, if there is one, are left out.

        Raises:
            errors.UserError: if a row names a split that cannot be.
        """
        members = list(self._without_split.members())
        if tree is not None:
            inside = [
                member
                for member in members
                if f"/{member.name}".startswith(f"/{tree.strip(' /')}/")
            ]
            self.ignored["other_tree"] += len(members) - len(inside)
            members = inside
        names = [member.name for member in members]
        row_of_file, without_file, self.num_repeated_rows = match_files(names, labels)
        # A file without a row counts as an image if one with a row has the same ending. The files
        # of a DICOM export have none.
        endings = {
            ending(name) for name, row in zip(names, row_of_file, strict=True) if row is not None
        }
        for row, why in without_file:
            self.num_files += 1
            self._reject(labels.path[row], "missing_file", f"row {row + 1} of {labels.name}: {why}")
        chosen: list[tuple[Member, int]] = []
        for member, row in zip(members, row_of_file, strict=True):
            if row is None:
                is_image = ending(member.name) in endings
                self._set_aside(member.name, f"{labels.name} has no row for it", is_image=is_image)
            elif row in labels.not_numbers:
                self._reject(
                    member.name,
                    "not_a_number",
                    f"row {row + 1} of {labels.name} has {labels.not_numbers[row]!a}",
                )
            elif not labels.label[row]:
                self._reject(
                    member.name,
                    "no_label",
                    f"row {row + 1} of {labels.name} has no label (see --missing)",
                )
            else:
                chosen.append((member, row))
        root = "/".join(_common_folders(member.name for member, _ in chosen))
        columns = _Columns()
        for member, _ in chosen:
            columns.add(member, root)
        rows = [row for _, row in chosen]
        split = [_split_of(labels, row) for row in rows]
        label = [labels.label[row] for row in rows]
        patient = [labels.patient[row] for row in rows] if labels.patient else [None] * len(rows)
        table = _with_columns(
            columns.table(), pa.array(split, pa.string()), pa.array(label, pa.string())
        ).append_column("patient", pa.array(patient, pa.large_string()))
        if labels.site is not None:
            site = pa.array([labels.site[row] for row in rows], pa.string())
            table = table.append_column(SITE, site.dictionary_encode())
        if labels.others is None:
            return table
        return table.append_column(
            OTHERS, labels.others.take(pa.array(rows, pa.int64())).to_struct_array()
        )

    def _reject(self, name: str, reason: str, detail: str) -> None:
        self.rejects.append(
            RejectedFile(
                source_path=printable(name),
                reason=reason,
                detail=printable(detail, MAX_DETAIL_LENGTH),
            )
        )

    def _set_aside(self, name: str, detail: str, *, is_image: bool = False) -> None:
        if is_image or looks_like_image(name):
            self.rejects.append(RejectedFile(source_path=name, reason="no_label", detail=detail))
        else:
            self.ignored["no_image_name"] += 1


class _Columns:
    """Stores members in Arrow columns: 40 bytes per member instead of 400 as Python objects."""

    def __init__(self) -> None:
        self.num_rows = 0
        self._batches: list[pa.RecordBatch] = []
        self._rows: list[tuple[str, str, int, int, int, int]] = []

    def add(self, member: Member, root: str) -> None:
        """Adds a member of the tree `root`, which is empty for the top folder of the source."""
        path = member.name[len(root) + 1 :] if root else member.name
        self._rows.append(
            (root, path, member.offset, member.stored_size, member.size, member.version)
        )
        self.num_rows += 1
        if len(self._rows) == BATCH_ROWS:
            self._flush()

    def _flush(self) -> None:
        columns = zip(*self._rows, strict=True) if self._rows else ([],) * 6
        names = ("root", "path", "offset", "stored_size", "size", "version")
        types = (pa.string(), pa.large_string(), *(pa.int64(),) * 4)
        arrays = [pa.array(column, kind) for column, kind in zip(columns, types, strict=True)]
        arrays[0] = arrays[0].dictionary_encode()
        self._batches.append(pa.RecordBatch.from_arrays(arrays, names=names))
        self._rows = []

    def table(self) -> pa.Table:
        self._flush()
        table = pa.Table.from_batches(self._batches).unify_dictionaries().combine_chunks()
        return table.append_column("frame", pa.nulls(table.num_rows, pa.int32()))

    def members(self) -> Iterator[Member]:
        for batch in self.table().to_batches(BATCH_ROWS):
            for row in batch.to_pylist():
                name = f"{row['root']}/{row['path']}" if row["root"] else row["path"]
                yield Member(name, row["size"], row["offset"], row["stored_size"], row["version"])


class _Folder(NamedTuple):
    """Facts that all files of a folder share.

    Attributes:
        levels: full paths of the folders on its path that have a split's name and contain the
            next folder of the path, outermost first.
        is_plain: whether a plain file name in it needs no further check: the folder is neither
            hidden nor unsafe.
    """

    levels: tuple[str, ...]
    is_plain: bool


@functools.lru_cache(maxsize=65_536)
def _folder_of(prefix: str) -> _Folder:
    """Returns the facts of a folder, given as a file's name up to and including its last `/`."""
    parts = prefix.split("/")
    # The last part is the empty place of the file's name; the part before it is the class folder.
    depths = (depth for depth in range(len(parts) - 2) if parts[depth].lower() in SPLITS)
    likely = [*parts[:-1], "a"]
    return _Folder(
        levels=tuple("/".join(parts[: depth + 1]) for depth in depths),
        is_plain=not (ignored_reason(likely) or name_problem(f"{prefix}a", likely)),
    )


def _parent(folder: str) -> str:
    return folder.rpartition("/")[0]


def _common_depth(names: Sequence[str]) -> int:
    """Returns the number of leading folders that all images share; the class folder comes next."""
    images = [name for name in names if looks_like_image(name)]
    shallowest = min((name.count("/") for name in images), default=0)
    # If all images are in one folder, that folder is the class.
    return max(min(len(_common_folders(images)), shallowest - 1), 0)


def _common_folders(names: Iterable[str]) -> list[str]:
    """Returns the folders that hold all files, outermost first."""
    folders = {tuple(name.split("/")[:-1]) for name in names}
    if not folders:
        return []
    pairs = zip(min(folders), max(folders), strict=False)
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


def folder_at(table: pa.Table, depth: int) -> pa.ChunkedArray:
    """Returns folder number `depth` of every path."""
    pattern = rf"^(?:[^/]*/){{{depth}}}(?P<folder>[^/]*)/"
    folders = pc.struct_field(pc.extract_regex(table["path"], pattern), "folder")
    return pc.cast(folders, pa.string())


def _with_columns(
    table: pa.Table, split: pa.Array | pa.ChunkedArray, label: pa.Array | pa.ChunkedArray
) -> pa.Table:
    return table.append_column("split", split.dictionary_encode()).append_column(
        "label", label.dictionary_encode()
    )
