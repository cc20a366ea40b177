"""Finds the files of a source that may be images, by their names and sizes."""

from __future__ import annotations

import collections
import itertools
import posixpath
import re
from collections.abc import Collection, Iterable, Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from pipelines import errors
from pipelines.listing.images import Images, Ledger
from pipelines.listing.options import ListingOptions
from pipelines.listing.refs import BATCH_ROWS, REF_SCHEMA, RejectedFile
from pipelines.sources.source import MAX_FILE_BYTES, Member
from tfrecord_io.decoding.preprocess import IMAGE_SUFFIXES, split_frame_path
from tfrecord_io.format.person import column_in_one_form
from tfrecord_io.terminal.flags import found_in
from tfrecord_io.terminal.printing import counted, one_form, printable

# Endings of texts that lie beside images, such as annotations. An unknown ending may be that of an
# image, as DICOM files have any.
_TEXT_ENDINGS = frozenset(
    {"txt", "xml", "json", "csv", "tsv", "md", "htm", "html", "pdf", "yaml", "yml", "ini", "log",
     "db", "xls", "xlsx", "parquet", "doc", "docx", "py", "ipynb"}
)  # fmt: skip

# What is kept of a file, in 40 bytes instead of the 400 of Python objects.
_FILE_SCHEMA = pa.schema(
    [
        ("name", pa.large_string()),
        *(REF_SCHEMA.field(name) for name in Member._fields[1:5]),
        ("spelled", pa.large_string()),
    ]
)


def read_files(members: Iterable[Member], options: ListingOptions) -> Images:
    """Counts the files of a source, and returns those that may be images, by their names and sizes.

    Raises:
        errors.BuildError: if the input cannot be read.
        errors.UserError: if no file can be used.
    """
    include, exclude = options.include_regex or "", options.exclude_regex
    num_files, excluded, others = 0, 0, list[str]()
    rejects, ignored = list[RejectedFile](), collections.Counter[str]()

    def candidates() -> Iterator[tuple[str | int | None, ...]]:
        nonlocal num_files, excluded
        for member in members:
            num_files += 1
            name = one_form(member.name)  # in which names are compared
            if not re.search(include, name) or (exclude and re.search(exclude, name)):
                excluded += 1
            elif reason := _ignored_reason(name):
                ignored[reason] += 1
            elif problem := _problem_of(member):
                rejects.append(RejectedFile(name, *problem))
            elif ending_of(name) in _TEXT_ENDINGS:
                others.append(name)
            else:
                yield name, *member[1:5], None if name == member.name else member.name

    rows, batches = candidates(), list[pa.RecordBatch]()
    while some := list(itertools.islice(rows, BATCH_ROWS)):
        columns = dict(zip(_FILE_SCHEMA.names, zip(*some, strict=True), strict=True))
        batches.append(pa.RecordBatch.from_pydict(columns, _FILE_SCHEMA))
    if num_files and excluded == num_files:
        raise errors.UserError(
            f"--include_regex and --exclude_regex leave out all of {counted(num_files, 'file')}; "
            "they are searched in the path of each"
        )
    if not batches and rejects:
        raise errors.UserError(
            f"none of {counted(num_files, 'file')} can be used; "
            f"{printable(rejects[0].source_path)}: {rejects[0].detail}"
        )
    ledger = Ledger(num_files=num_files, rejects=tuple(rejects), ignored=ignored, excluded=excluded)
    table = pa.Table.from_batches(batches, _FILE_SCHEMA).combine_chunks()
    if table["spelled"].null_count == len(table):
        table = table.drop_columns("spelled")
    return Images(table=table, ledger=ledger + Ledger.of_others(others))


def _ignored_reason(name: str) -> str | None:
    """Returns why a file is not data, by its name; None if it may be data."""
    parts = name.split("/")
    base = parts[-1]
    if "__MACOSX" in parts or base.startswith("._"):
        return "apple_double"  # macOS stores a file's attributes there, also under a name in .jpeg
    if any(part.startswith(".") and part not in (".", "..") for part in parts):
        return "hidden"
    return None


def _problem_of(member: Member) -> tuple[str, str] | None:
    """Returns (reason, detail) if a file must not be used, by its name or size, otherwise None."""
    name, parts = member.name, member.name.split("/")
    if member.problem:
        return member.problem
    is_absolute = re.match(r"[/\\]|[A-Za-z]:", name)
    if is_absolute or "\0" in name or {"..", ""} & {*parts} or "." in parts[1:]:
        return "unsafe_name", "the path is absolute, leads out of the archive, or is not plain"
    if "\\" in name and len(parts) == 1:
        return "unsafe_name", "folders are divided by \\; unpack the archive, and give the folder"
    try:
        name.encode("utf-8")
    except UnicodeEncodeError:
        return "unreadable_name", "the name is not UTF-8; rename it"
    path, frame = split_frame_path(name)
    if frame:
        return "path_conflict", f"this name would be that of frame {frame} of {path}; rename it"
    if (size := max(member.size, member.stored_size)) > MAX_FILE_BYTES:
        return "file_too_large", f"{size:,} bytes, more than {MAX_FILE_BYTES:,}"
    return None


def ending_of(name: str) -> str | None:
    """Returns the ending of a file's name: "" for none or a number, None for a DICOM directory."""
    base = name.rpartition("/")[2].lower()
    if base == "dicomdir":
        return None
    last = base.rpartition(".")[2] if "." in base else ""
    return "" if last.isdecimal() else last


def without_label(
    names: Iterable[str], detail: str, endings: Collection[str | None] = ()
) -> Ledger:
    """Rejects files without a label that look like images; the others are not data.

    A file looks like an image by its name, or because its ending is one of `endings`.
    """
    rejects, others = list[RejectedFile](), list[str]()
    for name in names:
        if name.lower().endswith(IMAGE_SUFFIXES) or ending_of(name) in endings:
            rejects.append(RejectedFile(name, "no_label", detail))
        else:
            others.append(name)
    return Ledger(rejects=tuple(rejects)) + Ledger.of_others(others)


def common_folders(folders: Iterable[str]) -> list[str]:
    """Returns the names of the folders that hold all these, outermost first."""
    return posixpath.commonprefix([folder.split("/") if folder else [] for folder in folders])


def has_suffix(names: pa.Array, suffixes: Sequence[str]) -> pa.Array:
    """Returns bool [num_names], whether each ends with one of these, in any case."""
    pattern = f"({'|'.join(map(re.escape, suffixes))})$"
    return pc.match_substring_regex(names, pattern, ignore_case=True)


def find_in_names(paths: pa.ChunkedArray, regex: str) -> pa.Array:
    """Returns the first group of a pattern in each name, or else in the path; null without one."""
    pattern = re.compile(regex)
    # One by one, because a list of all paths would take ten times the memory of the column.
    found = pa.array((found_in(path.as_py(), pattern) for path in paths), pa.large_string())
    return column_in_one_form(found)


def first_of(paths: pa.ChunkedArray) -> str:
    """Returns the first three paths for a message."""
    return ", ".join(map(ascii, paths.slice(0, 3).to_pylist()))
