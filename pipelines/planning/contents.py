"""Names for the contents of files, by which copies of a file are known before it is decoded."""

from __future__ import annotations

import functools

import pyarrow as pa
import xxhash

from pipelines.listing.refs import iterate_refs
from pipelines.sources.source import Member, Source, read_in_order
from tfrecord_io.decoding.rejects import Reject


def content_names(source: Source, refs: pa.Table) -> list[str]:
    """Returns a name for the content of each file, which is the same for copies of a file."""
    names: dict[Member, str] = {}
    # Each file is read once, whatever the number of its frames.
    members = list(dict.fromkeys(ref.member for ref in iterate_refs(refs)))
    with source.open() as reader:
        reads = ((member, functools.partial(reader.read, member)) for member in members)
        for member, read in zip(members, read_in_order(reader, reads), strict=True):
            try:
                names[member] = xxhash.xxh3_128_hexdigest(read())
            except Reject:
                # The decoder will reject it later; here its path serves as a unique name.
                names[member] = member.name
    return [names[ref.member] for ref in iterate_refs(refs)]
