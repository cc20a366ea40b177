"""`Reject`, the exception that leaves an image out, and the limit on the size of a picture."""

from __future__ import annotations

from tfrecord_io.printing import printable

#: A picture with more pixels is rejected as a decompression bomb (it takes over a quarter of a
#: gigabyte in RGB). The value is Pillow's default `MAX_IMAGE_PIXELS`, repeated here because a
#: program can change that one.
MAX_PIXELS = 89_478_485

#: Largest number of characters of a reject's detail; a library's message about an untrusted file
#: can be longer.
MAX_DETAIL_LENGTH = 200


class Reject(Exception):  # noqa: N818 - the project's word for an image that is left out
    """An image that is left out, with the reason.

    Attributes:
        reason: one of a few fixed words, by which rejects are counted.
        detail: what was found in the file.
    """

    def __init__(self, reason: str, detail: str) -> None:
        detail = printable(detail, MAX_DETAIL_LENGTH)
        super().__init__(f"{reason}: {detail}")
        self.reason = reason
        self.detail = detail

    def __reduce__(self) -> tuple[type, tuple[str, str]]:
        return Reject, (self.reason, self.detail)


def check_size(width: int, height: int) -> None:
    """Raises Reject for a picture of more than `MAX_PIXELS`."""
    if width * height > MAX_PIXELS:
        raise Reject("too_many_pixels", f"{width}x{height} pixels, more than {MAX_PIXELS:,}")
