"""What a source says of each of its files."""

from __future__ import annotations

from typing import NamedTuple

#: A larger file is rejected as not a scan, because reading it could exhaust a worker's memory.
MAX_FILE_BYTES = 256 * 1024 * 1024

#: The problem of a file that this user may not read. It ends the build, because it can be mended.
NOT_PERMITTED = "not_permitted"


class Member(NamedTuple):
    """One file of a source, which may be an image or not.

    Attributes:
        name: its path in the source, with `/` between folders.
        size: size of the file's content in bytes.
        offset: position in the archive in bytes; 0 for files on a disk.
        stored_size: size in the archive in bytes, compressed or not.
        version: a number that changes when the content changes.
        problem: (reason, detail) if it is already known that the file cannot be read.
        split: its split, if the source knows it and does not leave it to the names of folders.
        label: its class, likewise.
    """

    name: str
    size: int
    offset: int = 0
    stored_size: int = 0
    version: int = 0
    problem: tuple[str, str] | None = None
    split: str = ""
    label: str = ""
