"""Lists members that no file stands behind."""

import contextlib
from collections.abc import Iterable

from pipelines.listing.listing import ListingOptions, list_images
from pipelines.listing.refs import Listing
from pipelines.sources.source import Member, Reader, Source
from tfrecord_io.rejects import Reject


class Listed(Source, Reader):
    """A source and its own reader, to which each file is damaged."""

    def __init__(self, members: Iterable[Member]) -> None:
        self._members = members

    def members(self) -> Iterable[Member]:
        return self._members

    def describe(self) -> dict[str, object]:
        return {"kind": "listed"}

    def open(self, member: Member | None = None):
        return contextlib.nullcontext(self)

    def read(self, member: Member) -> bytes:
        raise Reject("undecodable", "every file is damaged")


def list_members(members: Iterable[Member], **options: object) -> Listing:
    """Returns the listing of members, which are copies if their versions are equal."""
    return list_images(Listed(members), ListingOptions(**options))
