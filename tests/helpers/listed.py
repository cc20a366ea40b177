"""Lists members without files."""

import contextlib
import re
import subprocess
import zlib
from collections.abc import Iterable

from pipelines.listing.classes import with_classes
from pipelines.listing.images import Images
from pipelines.listing.listing import list_images
from pipelines.listing.options import ListingOptions
from pipelines.listing.refs import iterate_refs
from pipelines.sources.source import Member, Reader, Source
from tfrecord_io.decoding.rejects import Reject


class Listed(Source, Reader):
    """A source and its own reader, to which each file without given content is damaged."""

    def __init__(self, members: Iterable[Member], contents: dict[str, bytes] | None = None) -> None:
        self._members, self._contents = members, contents or {}

    def members(self) -> Iterable[Member]:
        return self._members

    def same_content(self, one: Member, other: Member) -> bool:
        return one.version == other.version

    def describe(self) -> dict[str, object]:
        return {"kind": "listed"}

    def open(self, member: Member | None = None):
        return contextlib.nullcontext(self)

    def read(self, member: Member) -> bytes:
        if member.name not in self._contents:
            raise Reject("undecodable", "the file is damaged")
        return self._contents[member.name]


def list_source(source: Source, **options: object) -> Images:
    """Returns the listing of a source."""
    chosen = ListingOptions(**options)
    return with_classes(list_images(source, chosen), chosen)


def members_of(files):
    """Returns members as an archive would list them: the version is the content's checksum."""
    pairs = files.items() if isinstance(files, dict) else files
    return [
        Member(name, len(content), offset, len(content), zlib.crc32(content))
        for offset, (name, content) in enumerate(pairs)
    ]


def list_files(files, **options) -> Images:
    """Returns the listing of members, or of files by their names."""
    members = [m for m in files if isinstance(m, Member)] or members_of(files)
    return list_source(Listed(members, files if isinstance(files, dict) else None), **options)


def drawn(tree):
    """Returns a file for each path of a tree, drawn with braces as in bash, a line each."""
    lines = (re.sub(r"[^\w/{},.-]", r"\\\g<0>", line.strip()) for line in tree.strip().split("\n"))
    command = ["bash", "-c", f"printf '%s\\n' {' '.join(lines)}"]
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return {name: name.encode() for name in shown.splitlines()}


def places(listing):
    """Returns (split, label) of every image, by its full name."""
    return {ref.source_path: (ref.split, ref.label) for ref in iterate_refs(listing.table)}


def reasons(listing):
    """Returns the reason of each reject, by its name."""
    return {reject.source_path: reject.reason for reject in listing.ledger.rejects}


def notes_of(listing) -> str:
    """Returns the notes of a listing, a line each."""
    return "\n".join(listing.ledger.notes)
