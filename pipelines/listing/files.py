"""Finds the files of a source that may be images, by their names and sizes."""

from __future__ import annotations

import itertools
import re
import sys
from collections.abc import Iterable, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from pipelines import errors
from pipelines.listing.refs import BATCH_ROWS, REF_SCHEMA, Listing, RejectedFile
from pipelines.sources.source import MAX_FILE_BYTES, NOT_PERMITTED, Member
from tfrecord_io.decoding.preprocess import SINGLE_SUFFIXES, TIFF_SUFFIXES, split_frame_path
from tfrecord_io.terminal.printing import counted, printable

#: Endings of the names of images.
IMAGE_SUFFIXES = (*SINGLE_SUFFIXES, *TIFF_SUFFIXES, ".dcm", ".dicom")

_SYSTEM_FILES = frozenset({".ds_store", "thumbs.db", "desktop.ini"})

# Endings of texts that lie beside images, such as annotations. An unknown ending may be that of an
# image, as DICOM files have any.
_TEXT_ENDINGS = frozenset(
    {"txt", "xml", "json", "csv", "tsv", "md", "htm", "html", "pdf", "yaml", "yml", "ini", "log",
     "xls", "xlsx", "doc", "docx", "py", "ipynb"}
)  # fmt: skip

# What is kept of a file, in 40 bytes instead of the 400 of Python objects.
_FILE_SCHEMA = pa.schema(
    [
        ("name", pa.large_string()),
        *(REF_SCHEMA.field(name) for name in Member._fields[1:5]),
        ("spelled", pa.large_string()),
    ]
)


def read_members(members: Iterable[Member], listing: Listing, *, has_folders: bool) -> pa.Table:
    """Counts the files of a source, and returns those that may be images, by their names and sizes.

    Args:
        members: the files.
        listing: takes the other files.
        has_folders: whether folders name the classes, beside which texts may lie.

    Raises:
        errors.BuildError: if this user may not read some files.
        errors.UserError: if no file can be used.
    """
    kept = (
        (*member[:5], member.spelled)
        for member in members
        if _may_be_image(member, listing, has_folders)
    )
    batches = []
    while rows := list(itertools.islice(kept, BATCH_ROWS)):
        columns = dict(zip(_FILE_SCHEMA.names, zip(*rows, strict=True), strict=True))
        batches.append(pa.RecordBatch.from_pydict(columns, _FILE_SCHEMA))
    forbidden = [file.source_path for file in listing.rejects if file.reason == NOT_PERMITTED]
    if forbidden:
        raise errors.BuildError(
            f"this user may not read {len(forbidden):,} files or folders of the input, such as "
            f"{printable(min(forbidden))}. Permit it (chmod), and run the same command again; or, "
            "to leave them out, move them out of the input or give them names that begin with a dot"
        )
    if not batches and listing.rejects:
        first = listing.rejects[0]
        raise errors.UserError(
            f"none of {counted(listing.num_files, 'file')} can be used; "
            f"{printable(first.source_path)}: {first.detail}"
        )
    files = pa.Table.from_batches(batches, _FILE_SCHEMA).combine_chunks()
    is_usual = files["spelled"].null_count == len(files)
    return files.drop_columns("spelled") if is_usual else files


def _may_be_image(member: Member, listing: Listing, has_folders: bool) -> bool:
    listing.num_files += 1
    if reason := _ignored_reason(member.name):
        listing.ignored[reason] += 1
    elif problem := _problem_of(member):
        listing.rejects.append(RejectedFile(member.name, *problem))
    elif has_folders and ending_of(member.name) in _TEXT_ENDINGS:
        listing.ignore_other(member.name)
    else:
        return True
    return False


def _ignored_reason(name: str) -> str | None:
    """Returns why a file is not data, by its name; None if it may be data."""
    parts = name.split("/")
    base = parts[-1]
    if "__MACOSX" in parts or base.startswith("._"):
        return "apple_double"  # macOS stores a file's attributes there, also under a name in .jpeg
    if base.lower() in _SYSTEM_FILES:
        return "system_file"
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
        code = sys.getfilesystemencoding()
        why = "" if code == "utf-8" else f"; Python reads names as {code} here, set PYTHONUTF8=1"
        return "unreadable_name", f"the name is not UTF-8{why}; rename it"
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


def has_suffix(names: pa.Array, suffixes: Sequence[str]) -> pa.Array:
    """Returns bool [num_names], whether each ends with one of these, in any case."""
    pattern = f"({'|'.join(map(re.escape, suffixes))})$"
    return pc.match_substring_regex(names, pattern, ignore_case=True)
