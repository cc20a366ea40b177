"""Turns the files of a source into image references, with split, class and patient.

A reference takes about a hundred bytes and holds no pixels, so the whole listing is an Arrow table
in the launcher's memory: 84,484 rows take a second, ten million rows about a gigabyte.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import itertools
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipelines import errors
from pipelines.listing.label_table import LabelTable, match_files
from tfrecord_io.label_kinds import CLASSES, LabelKind
from tfrecord_io.preprocess import MAX_DETAIL_LENGTH, frame_path
from tfrecord_io.printing import printable

#: The class folders of the Kermany OCT data, by which its tree is recognised among others.
OCT_LABELS = frozenset({"CNV", "DME", "DRUSEN", "NORMAL"})

#: Kermany's file names are CLASS-PATIENT-INDEX.jpeg. The group excludes the class on purpose,
#: because a patient can appear in several classes.
DEFAULT_GROUP_REGEX = r"^[A-Za-z]+-(\d+)-\d+\.[A-Za-z]+$"

#: A larger file is rejected as not a scan, because reading it could exhaust a worker's memory.
MAX_FILE_BYTES = 256 * 1024 * 1024

_SPLITS = {
    "train": "train", "training": "train",
    "val": "val", "valid": "val", "validation": "val", "dev": "val",
    "test": "test", "testing": "test",
}  # fmt: skip

#: Endings of names of pictures, and of those that may have several pages.
PICTURE_SUFFIXES = (
    ".jpeg", ".jpg", ".png", ".tif", ".tiff", ".bmp", ".gif", ".webp", ".jp2", ".pgm", ".ppm",
)  # fmt: skip
TIFF_SUFFIXES = (".tif", ".tiff")

_SYSTEM_FILES = frozenset({".ds_store", "thumbs.db", "desktop.ini"})

# A name that needs no further check if its folder is neither hidden nor unsafe.
_PLAIN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_. ()-]*")

_BATCH_ROWS = 65_536

#: One row per image. `root` + "/" + `path` is its name in the source. `path`, which starts at the
#: split or class folder, is its identity. `offset` and `stored_size` locate it in an archive.
#: `version` changes when the file changes (a CRC-32, or a time in ns). `frame` is the frame of a
#: DICOM file or the page of a TIFF, see `preprocess.frame_path`; null for files that are one image.
#: A table of anonymous images has a further column, `hidden`, with the name in the source; one of
#: images with a table of labels has the table's other columns in a struct, `others`; one of several
#: sites has the name of each image's site, `site`.
REF_SCHEMA = pa.schema(
    [
        ("root", pa.dictionary(pa.int32(), pa.string())),
        ("path", pa.large_string()),
        ("split", pa.dictionary(pa.int32(), pa.string())),
        ("label", pa.dictionary(pa.int32(), pa.string())),
        ("patient", pa.large_string()),
        ("offset", pa.int64()),
        ("stored_size", pa.int64()),
        ("size", pa.int64()),
        ("version", pa.int64()),
        ("frame", pa.int32()),
    ]
)


#: Name of the struct with the other columns of a table of labels.
OTHERS = "others"

#: Name of the column with the site of each image, in a listing of several sites.
SITE = "site"


class Member(NamedTuple):
    """One file of a source, which may be an image or not.

    Attributes:
        name: its path in the source, with `/` between folders.
        size: size of the file's content in bytes.
        offset: position in the archive in bytes; 0 for files on a disk.
        stored_size: size in the archive in bytes, compressed or not.
        version: a number that changes when the content changes.
        problem: (reason, detail) if it is already known that the file cannot be read.
    """

    name: str
    size: int
    offset: int = 0
    stored_size: int = 0
    version: int = 0
    problem: tuple[str, str] | None = None


class ImageRef(NamedTuple):
    """A row of `REF_SCHEMA`; see `to_read` for the one that a reader of the source takes."""

    root: str
    path: str
    split: str
    label: str
    patient: str | None
    offset: int
    stored_size: int
    size: int
    version: int
    frame: int | None = None
    hidden: str | None = None

    @property
    def source_path(self) -> str:
        """The image's full name in the source, or its code if it is anonymous."""
        return f"{self.root}/{self.path}" if self.root else self.path

    @property
    def image_path(self) -> str:
        """The image's name in its tree, from which its key is made: with its frame, if any."""
        return frame_path(self.path, self.frame)

    @property
    def image_name(self) -> str:
        """The image's full name in the source, with its frame, if any."""
        return frame_path(self.source_path, self.frame)

    def to_read(self) -> ImageRef:
        """Returns the reference by which a reader finds the image: with its name in the source."""
        return self if self.hidden is None else self._replace(root="", path=self.hidden)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RejectedFile:
    """A file left out, with the reason."""

    source_path: str
    reason: str
    detail: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Listing:
    """The files of a source. Each is counted once: in refs, rejects, copies, ignored or dropped.

    Attributes:
        refs: the images, a table of `REF_SCHEMA` sorted by path.
        rejects: files that should be images of a class but cannot be used, sorted by path.
        copies: number of files in a second tree that repeat a listed one.
        ignored: number of files that are not data, by reason, sorted.
        num_files: number of files seen; each frame of a file with several counts as a file.
        frames: number of images that are frames of DICOM or TIFF files, by format.
        dropped: number of images that a policy left out.
        notes: what the user should know about the classes, one sentence each.

    Raises:
        RuntimeError: if the numbers do not add up to `num_files`.
    """

    refs: pa.Table
    rejects: tuple[RejectedFile, ...]
    copies: int
    ignored: dict[str, int]
    num_files: int
    frames: Mapping[str, int] = dataclasses.field(default_factory=dict)
    dropped: int = 0
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        rejects = sorted(self.rejects, key=lambda reject: (reject.source_path, reject.reason))
        object.__setattr__(self, "rejects", tuple(rejects))  # the dataclass is frozen
        object.__setattr__(self, "ignored", dict(sorted(self.ignored.items())))
        parts = self.refs.num_rows + len(self.rejects) + self.copies + sum(self.ignored.values())
        parts += self.dropped
        if parts != self.num_files:
            raise RuntimeError(
                f"the listing saw {self.num_files} files, but {parts} are accounted for; this is "
                "a bug, please report it"
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class ListingOptions:
    """What the user says about the layout.

    Attributes:
        classes: class folders to use, in the order of their label indices; if empty, all of them,
            sorted.
        tree: the folder that holds the SPLIT or CLASS folders, if several folders do.
        group_regex: pattern whose first group is the patient in a file's name.
        labels: a table with the label of each image, instead of class folders.
        label_kind: what an image's label can be.
        sites: what the user says about each of several sites, by name.

    Raises:
        ValueError: if the pattern is invalid or has no group, or a class is repeated.
    """

    classes: tuple[str, ...] = ()
    tree: str | None = None
    group_regex: str = DEFAULT_GROUP_REGEX
    labels: LabelTable | None = None
    label_kind: LabelKind = CLASSES
    sites: Mapping[str, SiteOptions] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        try:
            groups = re.compile(self.group_regex).groups
        except re.error as error:
            raise ValueError(
                f"group_regex {self.group_regex!r} is not a valid pattern: {error}"
            ) from None
        if groups < 1:
            raise ValueError(
                f"group_regex {self.group_regex!r} needs a group in parentheses for the patient"
            )
        if len(set(self.classes)) != len(self.classes):
            raise ValueError(f"classes must differ, received {', '.join(self.classes)}")


@dataclasses.dataclass(frozen=True, kw_only=True)
class SiteOptions:
    """What the user says about one of several sites.

    Attributes:
        listing: its layout and labels.
        split: the split of all its images; None if they keep their own.
        rename: names of classes in the dataset, by their names at the site.
    """

    listing: ListingOptions
    split: str | None = None
    rename: Mapping[str, str] = dataclasses.field(default_factory=dict)


def list_images(
    members: Iterable[Member],
    options: ListingOptions,
    same_content: Callable[[ImageRef, ImageRef], bool],
) -> Listing:
    """Sorts a source's files into images, copies of images, rejects and ignored files.

    Two layouts are recognised, below any folder: SPLIT/CLASS/files and, if there is no split
    folder, CLASS/files, whose images all go to the split `train`. Files may be in subfolders of
    their class. If all images below a folder with a split's name are in further such folders, as
    in train/train/CNV or dev/scans/train/CNV, the inner ones are the splits.

    Args:
        members: the files of the source, in any order.
        options: what the user says about the layout.
        same_content: returns whether two files have the same content; it is called for files of
            the same size and path in two trees.

    Raises:
        errors.UserError: if no image is found, the chosen tree or classes do not exist, or there
            are several unrelated trees and none was chosen.
    """
    labels = options.labels
    sorter = _Sorter(has_folders=labels is None)
    for member in members:
        sorter.add(member)
    rejects, ignored = sorter.rejects, sorter.ignored
    if labels:
        return _list_labelled(sorter, labels, options, same_content)
    table = sorter.place()
    if not table.num_rows:
        raise errors.UserError(
            f"found no image in SPLIT/CLASS or CLASS folders among {sorter.num_files:,} files; "
            "check --input (it should hold folders like train/CNV/, or CNV/)"
        )
    table = _choose_tree(table, options.tree, ignored)
    table = choose_classes(table, options.classes, ignored)
    table, copies = _drop_copies(table, same_content, rejects)
    patients = _find_patients(table["path"], options.group_regex)
    classes = sorted(pc.unique(pc.cast(table["label"], pa.string())).to_pylist())
    notes = (*_split_notes(classes), *_alike_notes("classes", classes, "rename the folders"))
    return _listing(sorter, table.append_column("patient", patients), copies, notes)


def _listing(sorter: _Sorter, table: pa.Table, copies: int, notes: Iterable[str]) -> Listing:
    """Returns what was sorted, with the images in `table`."""
    schema = REF_SCHEMA
    if OTHERS in table.column_names:
        schema = schema.append(table.schema.field(OTHERS))
    return Listing(
        refs=table.select(schema.names).cast(schema).combine_chunks(),
        rejects=tuple(sorter.rejects),
        copies=copies,
        ignored=sorter.ignored,
        num_files=sorter.num_files,
        notes=tuple(notes),
    )


def _list_labelled(
    sorter: _Sorter,
    labels: LabelTable,
    options: ListingOptions,
    same_content: Callable[[ImageRef, ImageRef], bool],
) -> Listing:
    """Gives every file the label, patient and split of its row in a table.

    A file without a row, and a row without a file, are rejects; such a row counts as a file.
    """
    table = sorter.place_by_table(labels, options.tree)
    if not table.num_rows:
        why = {reject.reason: reject.detail for reject in sorter.rejects}
        raise errors.UserError(
            f"no row of --labels {labels.name} gives a label to one of the files: "
            + ("; ".join(why.values()) or "there are no files")
            + ". Its `path` should be a file's path in the input, or the end of it"
        )
    table = choose_classes(table, options.classes, sorter.ignored)
    table = table.sort_by([("path", "ascending"), ("offset", "ascending")])
    table, copies = _drop_copies(table, same_content, sorter.rejects)
    if labels.patient is None:
        patients = _find_patients(table["path"], options.group_regex)
        table = table.drop_columns("patient").append_column("patient", patients)
    names = sorted(labels.label_columns or pc.unique(table["label"].cast(pa.string())).to_pylist())
    # The name of the table stays out of the notes, which are in an anonymous dataset too.
    notes = _alike_notes("labels", names, "give them one name in the table")
    return _listing(sorter, table, copies, notes)


def iterate_refs(table: pa.Table | pa.RecordBatch) -> Iterator[ImageRef]:
    """Yields the rows of a table of `REF_SCHEMA`, converting one batch at a time."""
    batches = [table] if isinstance(table, pa.RecordBatch) else table.to_batches(_BATCH_ROWS)
    for batch in batches:
        names = [name for name in ImageRef._fields if name in batch.schema.names]
        columns = [batch.column(name).to_pylist() for name in names]
        yield from itertools.starmap(ImageRef, zip(*columns, strict=True))


def source_paths(refs: pa.Table) -> pa.Array:
    """Returns the full name of each image's file, as `ImageRef.source_path` does."""
    roots = refs["root"].cast(pa.large_string()).combine_chunks()
    joined = pc.binary_join_element_wise(
        roots, refs["path"].combine_chunks(), pa.scalar("/", pa.large_string())
    )
    return pc.if_else(pc.equal(roots, ""), refs["path"].combine_chunks(), joined)


def with_column(refs: pa.Table, name: str, values: Sequence[object] | pa.Array) -> pa.Table:
    """Returns the images with other values in a column of `REF_SCHEMA`."""
    field = REF_SCHEMA.field(name)
    return refs.set_column(refs.schema.get_field_index(name), field, pa.array(values, field.type))


def other_columns(refs: pa.Table) -> dict[str, pa.Array]:
    """Returns the columns in the struct `OTHERS`, by name; none if the images have no struct."""
    if OTHERS not in refs.column_names:
        return {}
    struct = refs[OTHERS].combine_chunks()
    return dict(zip((field.name for field in struct.type), struct.flatten(), strict=True))


class _Sorter:
    """The first pass over the files: sets aside those that are not images, and keeps the others."""

    def __init__(self, *, has_folders: bool = True) -> None:
        self._has_folders = has_folders
        self.num_files = 0
        self.rejects: list[RejectedFile] = []
        self.ignored: collections.Counter[str] = collections.Counter()
        self._with_split = _Columns()
        self._without_split = _Columns()
        self._image_levels: set[str] = set()
        self._other_levels: set[str] = set()
        self._has_nested_levels = False

    def add(self, member: Member) -> None:
        self.num_files += 1
        name = member.name
        base = name.rpartition("/")[2]
        folder = _folder_of(name[: len(name) - len(base)])
        # A fast path: nearly all names are plain and need no further check.
        is_plain = folder.is_plain and _is_plain(base)
        if not is_plain and (reason := _ignored_reason(name.split("/"))):
            self.ignored[reason] += 1
        elif (
            problem := member.problem
            or (None if is_plain else _name_problem(name, name.split("/")))
            or _size_problem(member)
        ):
            self._reject(name, *problem)
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
            place = pc.index_in(pc.ascii_lower(_folder(table, 0)), pa.array(list(_SPLITS)))
            split = pa.array(list(_SPLITS.values())).take(place)
            return _with_columns(table, split, _folder(table, 1))
        return self._place_by_class()

    def _note_level(self, folder: _Folder, name: str) -> None:
        """Remembers the innermost split folder of a file, the split if all images agree."""
        self._has_nested_levels |= len(folder.levels) > 1
        innermost = folder.levels[-1]
        if innermost in self._image_levels:
            return
        levels = self._image_levels if _looks_like_image(name) else self._other_levels
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
        return _with_columns(table, pa.repeat("train", table.num_rows), _folder(table, 0))

    def place_by_table(self, labels: LabelTable, tree: str | None) -> pa.Table:
        """Gives every remaining file the label of its row, or a reason why it has none."""
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
        matches = match_files(names, labels)
        # A file without a row counts as an image if one with a row has the same ending. The files
        # of a DICOM export have none.
        endings = {
            _ending(name)
            for name, row in zip(names, matches.row_of_file.tolist(), strict=True)
            if row >= 0
        }
        for row, why in matches.rows_without_file:
            self.num_files += 1
            self._reject(labels.path[row], "missing_file", f"row {row + 1} of {labels.name}: {why}")
        chosen: list[tuple[Member, int]] = []
        for member, row in zip(members, matches.row_of_file.tolist(), strict=True):
            if row < 0:
                is_image = _ending(member.name) in endings
                self._set_aside(member.name, f"{labels.name} has no row for it", is_image=is_image)
            elif row in labels.not_numbers:
                self._reject(
                    member.name,
                    "not_a_number",
                    f"row {row + 1} of {labels.name} has {labels.not_numbers[row]!a}",
                )
            elif not labels.label[row]:
                self._reject(
                    member.name, "no_label", f"row {row + 1} of {labels.name} has no label"
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
        if is_image or _looks_like_image(name):
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
        if len(self._rows) == _BATCH_ROWS:
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
        for batch in self.table().to_batches(_BATCH_ROWS):
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
    depths = (depth for depth in range(len(parts) - 2) if parts[depth].lower() in _SPLITS)
    likely = [*parts[:-1], "a"]
    return _Folder(
        levels=tuple("/".join(parts[: depth + 1]) for depth in depths),
        is_plain=not (_ignored_reason(likely) or _name_problem(f"{prefix}a", likely)),
    )


def _parent(folder: str) -> str:
    return folder.rpartition("/")[0]


def _is_plain(base: str) -> bool:
    return _PLAIN_NAME.fullmatch(base) is not None and base.lower() not in _SYSTEM_FILES


def _ignored_reason(parts: Sequence[str]) -> str | None:
    name = parts[-1]
    if "__MACOSX" in parts or name.startswith("._"):
        return "apple_double"  # macOS stores a file's attributes there, also under a name in .jpeg
    if name.lower() in _SYSTEM_FILES:
        return "system_file"
    if any(part.startswith(".") and part not in (".", "..") for part in parts):
        return "hidden"
    return None


def _name_problem(name: str, parts: Sequence[str]) -> tuple[str, str] | None:
    if (
        name.startswith(("/", "\\"))
        or re.match(r"[A-Za-z]:", name)
        or ".." in parts
        or "\0" in name
        or "" in parts
        or "." in parts[1:]
    ):
        return "unsafe_name", "the path is absolute, leads out of the archive, or is not plain"
    try:
        name.encode("utf-8")
    except UnicodeEncodeError:
        return "unreadable_name", "the name is not UTF-8"
    return None


def _size_problem(member: Member) -> tuple[str, str] | None:
    size = max(member.size, member.stored_size)
    if size > MAX_FILE_BYTES:
        return "file_too_large", f"{size:,} bytes, more than {MAX_FILE_BYTES:,}"
    return None


def _ending(name: str) -> str | None:
    """Returns the ending of a file's name: "" for none or a number, None for a DICOM directory."""
    base = name.rpartition("/")[2].lower()
    if base == "dicomdir":
        return None
    ending = base.rpartition(".")[2] if "." in base else ""
    return "" if ending.isdecimal() else ending


def _looks_like_image(name: str) -> bool:
    return name.lower().endswith((*PICTURE_SUFFIXES, ".dcm", ".dicom"))


def _common_depth(names: Sequence[str]) -> int:
    """Returns the number of leading folders that all images share; the class folder comes next."""
    images = [name for name in names if _looks_like_image(name)]
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
    split = _SPLITS.get(name.lower(), name)
    if not re.fullmatch(r"[a-z][a-z0-9_]*", split):
        raise ValueError(
            f"the split {name!a}; expected train, val, test or another name of lower-case letters, "
            "digits and underscores"
        )
    return split


def _folder(table: pa.Table, depth: int) -> pa.ChunkedArray:
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


def _choose_tree(table: pa.Table, tree: str | None, ignored: collections.Counter[str]) -> pa.Table:
    """Keeps one tree and its copies; sorts the files of the chosen tree before their copies."""
    table = table.append_column("tree", _trees(table))
    counts = table.group_by(["tree", "label"]).aggregate([([], "count_all")]).to_pylist()
    labels: dict[str, set[str]] = collections.defaultdict(set)
    sizes: collections.Counter[str] = collections.Counter()
    for row in counts:
        labels[row["tree"]].add(row["label"])
        sizes[row["tree"]] += row["count_all"]
    ranked = sorted(sizes, key=lambda root: (-sizes[root], len(root), root))
    if tree is not None:
        leader = next((root for root in ranked if root.strip(" /") == tree.strip(" /")), None)
        if leader is None:
            raise errors.UserError(f"no tree {tree!r} in the source; it has {_quote(ranked)}")
    else:
        oct_trees = [root for root in ranked if labels[root] == OCT_LABELS]
        leader = (oct_trees or ranked)[0]
    same = _trees_like(table, leader)
    others = [root for root in ranked if root not in same]
    if others and tree is None and labels[leader] != OCT_LABELS:
        raise errors.UserError(
            f"the source holds {len(others) + 1} unrelated trees: {_quote([leader, *others])}; "
            "choose one with --tree"
        )
    if others:
        ignored["other_tree"] = sum(sizes[root] for root in others)
    kept = table.filter(pc.is_in(table["tree"], pa.array(sorted(same))))
    is_copy = pc.not_equal(kept["tree"], leader)
    order = pc.sort_indices(
        kept.append_column("is_copy", pc.cast(is_copy, pa.int8())).append_column(
            "root_name", pc.cast(kept["root"], pa.string())
        ),
        sort_keys=[(key, "ascending") for key in ("path", "is_copy", "root_name", "offset")],
    )
    return kept.take(order)


def _trees(table: pa.Table) -> pa.ChunkedArray:
    """Returns the tree of every file: the folder above its split folder.

    If an archive wraps each split in a folder of the same name, as in train/train and test/test,
    the tree is the folder above both, so that the splits stay together.
    """
    splits: dict[str, set[str]] = collections.defaultdict(set)
    for row in table.group_by(["root", "split"]).aggregate([]).to_pylist():
        splits[row["root"]].add(row["split"])
    trees = {
        root: _parent(root) if {_SPLITS.get(root.rpartition("/")[2].lower())} == names else root
        for root, names in splits.items()
    }
    roots = table["root"].combine_chunks()
    named = pa.array([trees[root] for root in roots.dictionary.to_pylist()], pa.string())
    return pa.chunked_array([named.take(roots.indices)])


def _trees_like(table: pa.Table, leader: str) -> set[str]:
    """Returns the leader and the trees that share at least half of their paths with it.

    Kaggle's archive of the Kermany data holds its whole tree twice, and a copy may be incomplete.
    """
    names = table["tree"]
    trees = pc.unique(names).to_pylist()
    if len(trees) == 1:
        return {leader}
    leader_paths = table.filter(pc.equal(names, leader))["path"].combine_chunks()
    same = {leader}
    for tree in trees:
        paths = table.filter(pc.equal(names, tree))["path"]
        if tree != leader and 2 * pc.sum(pc.is_in(paths, leader_paths)).as_py() >= len(paths):
            same.add(tree)
    return same


def _split_notes(classes: Sequence[str]) -> Iterator[str]:
    """Yields a sentence for each class folder that may be a split."""
    for name in classes:
        if name.lower() in _SPLITS:
            yield (
                f"the class {name!a} has the name of a split; if it is not a class, give --input "
                "or --tree the folder that holds the SPLIT or CLASS folders"
            )


def _alike_notes(noun: str, labels: Sequence[str], advice: str) -> Iterator[str]:
    """Yields a sentence for labels that look alike."""
    alike: dict[str, list[str]] = collections.defaultdict(list)
    for label in labels:
        alike[folded(label)].append(ascii(label))
    for names in alike.values():
        if len(names) > 1:
            yield (
                f"the {noun} {' and '.join(names)} differ only in case, spaces or Unicode form; if "
                f"they are one, {advice}"
            )


def folded(label: str) -> str:
    """Returns a form that is equal for names that look alike (Unicode D146: caseless matching)."""
    caseless = unicodedata.normalize("NFD", label).casefold()
    return unicodedata.normalize("NFC", caseless).strip()


def choose_classes(
    table: pa.Table, classes: Sequence[str], ignored: collections.Counter[str]
) -> pa.Table:
    """Keeps the images of the chosen classes, and counts the others.

    Args:
        table: images with their `label`.
        classes: names of classes; all are kept if there are none.
        ignored: number of files that are not used, by reason; it is changed.

    Raises:
        errors.UserError: if a chosen class has no images.
    """
    if not classes:
        return table
    labels = pc.cast(table["label"], pa.string())
    present = set(pc.unique(labels).to_pylist())
    if missing := set(classes) - present:
        raise errors.UserError(
            f"--classes or --grades names {_quote(sorted(missing))}, but the classes are "
            f"{_quote(sorted(present))}"
        )
    kept = table.filter(pc.is_in(labels, pa.array(classes)))
    if kept.num_rows < table.num_rows:
        ignored["class_not_chosen"] += table.num_rows - kept.num_rows
    return kept


def _drop_copies(
    table: pa.Table,
    same_content: Callable[[ImageRef, ImageRef], bool],
    rejects: list[RejectedFile],
) -> tuple[pa.Table, int]:
    """Keeps the first of several files of the same path, which are adjacent in the table.

    Each of the others is a copy if its content is the same, and a reject otherwise.

    Returns:
        the files that are kept, and the number of copies.
    """
    paths = table["path"].combine_chunks()
    is_first = np.ones(len(paths), bool)
    if len(paths) > 1:
        is_first[1:] = pc.not_equal(paths.slice(1), paths.slice(0, len(paths) - 1)).to_numpy(
            zero_copy_only=False
        )
    if is_first.all():
        return table, 0
    repeated = np.flatnonzero(~is_first)
    firsts = np.maximum.accumulate(np.where(is_first, np.arange(len(is_first)), 0))[repeated]
    copies = 0
    for ref, first in zip(
        _iterate_without_patient(table.take(repeated)),
        _iterate_without_patient(table.take(firsts)),
        strict=True,
    ):
        if ref.size == first.size and same_content(ref, first):
            copies += 1
        else:
            detail = f"same path as {first.source_path}, but different content"
            rejects.append(
                RejectedFile(source_path=ref.source_path, reason="path_conflict", detail=detail)
            )
    return table.filter(pa.array(is_first)), copies


def _iterate_without_patient(table: pa.Table) -> Iterator[ImageRef]:
    if "patient" not in table.column_names:
        table = table.append_column("patient", pa.nulls(table.num_rows, pa.large_string()))
    return iterate_refs(table.select(REF_SCHEMA.names))


def _find_patients(paths: pa.ChunkedArray, group_regex: str) -> pa.ChunkedArray:
    pattern = re.compile(group_regex)

    def patient(path: str) -> str | None:
        match = pattern.search(path.rsplit("/", 1)[-1])
        return match.group(1) if match else None

    # Batch by batch, because a list of all paths would take ten times the memory of the column.
    batches = (paths.slice(start, _BATCH_ROWS) for start in range(0, len(paths), _BATCH_ROWS))
    found = (map(patient, batch.to_pylist()) for batch in batches)
    kind = pa.large_string()
    return pa.chunked_array([pa.array(patients, kind) for patients in found], kind)


def _quote(names: Iterable[str]) -> str:
    return ", ".join(repr(name) for name in names)
