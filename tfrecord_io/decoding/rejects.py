"""`Reject`, the exception that leaves an image out, and which errors of libraries are worth one.

>>> is_of_content(OSError("image file is truncated")), is_of_content(OSError(5, "I/O error"))
(True, False)
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator

from tfrecord_io.terminal.printing import printable

#: A picture with more pixels is a reject: Pillow's default `MAX_IMAGE_PIXELS`, a quarter GB in RGB.
MAX_PIXELS = 89_478_485

#: Characters of a reject's detail; a library's message about an untrusted file can be longer.
MAX_DETAIL_LENGTH = 200

# Reasons that are not words if their underscores are spaces.
_WORDS = {"apple_double": "attributes kept by macOS", "hidden": "hidden file"}


def in_words(reason: str) -> str:
    """Returns the reason why a file was left out, in words.

    >>> in_words("apple_double"), in_words("not_an_image")
    ('attributes kept by macOS', 'not an image')
    """
    return _WORDS.get(reason, reason.replace("_", " "))


class Reject(Exception):  # noqa: N818 - the project's word for an image that is left out
    """An image that is left out: `reason` is one of a few fixed words, `detail` what was found."""

    def __init__(self, reason: str, detail: str) -> None:
        detail = printable(detail, MAX_DETAIL_LENGTH)
        super().__init__(f"{reason}: {detail}")
        self.reason = reason
        self.detail = detail

    def __reduce__(self) -> tuple[type, tuple[str, str]]:
        return Reject, (self.reason, self.detail)


def is_of_content(error: BaseException) -> bool:
    """Returns whether an error tells of a file's content, and not of the machine that reads it.

    Such a file is left out, or an archive refused. Any other error ends the build, because a later
    run may read the same file well.
    """
    if isinstance(error, OSError):
        # The system's errors have a number, unlike those of Pillow, gzip and zipfile. A damaged
        # index, which names a place before the start of its archive, gives EINVAL.
        return error.errno in (None, errno.EINVAL)
    return not isinstance(error, MemoryError | ImportError)


@contextlib.contextmanager
def as_rejects() -> Iterator[None]:
    """Raises a Reject, with the library's reason, instead of an error of a file's content.

    For damaged bytes, decoders raise almost anything, such as struct.error or SyntaxError.
    """
    try:
        yield
    except Reject:
        raise
    except Exception as error:
        if not is_of_content(error):
            raise
        raise Reject(
            "truncated" if "truncated" in str(error).lower() else "undecodable", reason_of(error)
        ) from None


def reason_of(error: Exception) -> str:
    """Returns the reason that a library gives; not if it quotes the file, which may be a secret."""
    lines = str(error).strip().splitlines()  # the last one of pydicom's has the reason
    is_safe = bool(lines) and "b'" not in lines[-1] and 'b"' not in lines[-1]
    return lines[-1].strip() if is_safe else f"the decoder raised {type(error).__name__}"


def check_size(width: int, height: int) -> None:
    """Raises Reject for a picture of more than `MAX_PIXELS`."""
    if width * height > MAX_PIXELS:
        raise Reject("too_many_pixels", f"{width}x{height} pixels, more than {MAX_PIXELS:,}")
