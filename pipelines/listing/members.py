"""What the name and the size of a file already tell about it."""

from __future__ import annotations

import re
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from pipelines.sources.member import MAX_FILE_BYTES, Member
from tfrecord_io.decoding.preprocess import SINGLE_SUFFIXES, TIFF_SUFFIXES, split_frame_path

#: Endings of the names of images.
IMAGE_SUFFIXES = (*SINGLE_SUFFIXES, *TIFF_SUFFIXES, ".dcm", ".dicom")

_SYSTEM_FILES = frozenset({".ds_store", "thumbs.db", "desktop.ini"})

#: Endings of texts that lie beside images, such as annotations. An unknown ending may be that of an
#: image, as DICOM files have any.
TEXT_ENDINGS = frozenset(
    {"txt", "xml", "json", "csv", "tsv", "md", "htm", "html", "pdf", "yaml", "yml", "ini", "log",
     "xls", "xlsx", "doc", "docx", "py", "ipynb"}
)  # fmt: skip


def ignored_reason(name: str) -> str | None:
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


def problem_of(member: Member) -> tuple[str, str] | None:
    """Returns (reason, detail) if a file must not be used, by its name or size, otherwise None."""
    name, parts = member.name, member.name.split("/")
    if member.problem:
        return member.problem
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
    path, frame = split_frame_path(name)
    if frame:
        return "path_conflict", f"this name would be that of frame {frame} of {path}; rename it"
    if (size := max(member.size, member.stored_size)) > MAX_FILE_BYTES:
        return "file_too_large", f"{size:,} bytes, more than {MAX_FILE_BYTES:,}"
    return None


def ending(name: str) -> str | None:
    """Returns the ending of a file's name: "" for none or a number, None for a DICOM directory."""
    base = name.rpartition("/")[2].lower()
    if base == "dicomdir":
        return None
    last = base.rpartition(".")[2] if "." in base else ""
    return "" if last.isdecimal() else last


def looks_like_image(name: str) -> bool:
    """Returns whether a file's name ends as that of an image does."""
    return name.lower().endswith(IMAGE_SUFFIXES)


def has_suffix(names: pa.Array, suffixes: Sequence[str]) -> pa.Array:
    """Returns bool [num_names], whether each ends with one of these, in any case."""
    pattern = f"({'|'.join(map(re.escape, suffixes))})$"
    return pc.match_substring_regex(names, pattern, ignore_case=True)
