"""`Reject`, for an image that no library reads, with its reason; and what such a file is.

>>> is_of_content(OSError("image file is truncated")), is_of_content(OSError(5, "I/O error"))
(True, False)
"""

from __future__ import annotations

import contextlib
import errno
import re
from collections.abc import Iterator

from tfrecord_io.terminal.printing import printable

#: A picture with more pixels is a reject: Pillow's default `MAX_IMAGE_PIXELS`, a quarter GB in RGB.
MAX_PIXELS = 89_478_485

#: Characters of a reject's detail; a library's message about an untrusted file can be longer.
MAX_DETAIL_LENGTH = 200

#: As many bytes as show what a file is.
START_BYTES = 512

# Kinds of files that are not read, by their first bytes or the ending of their name. The pattern
# (?!) matches nothing.
_KINDS = (
    (rb".{128}dicm", "(?!)", "DICOM: give its name the ending .dcm"),
    # The first element of DICOM is of group 2 or 8, in either order of bytes.
    (rb"\x02\0[\0-\x1f]\0u[il]|\x08\0[\0-\x1f]\0|\0\x08\0[\0-\x1f]", "(?!)",
     "DICOM without its preamble: dcmconv old.dcm new.dcm of DCMTK writes one that has it"),
    (rb"version https://git-lfs|/annex/objects/", "(?!)",
     "a pointer of Git LFS or git-annex: git lfs pull or datalad get fetches the file"),
    (rb"(?!)", r"nii(\.gz)?|nrrd|nhdr|mha|mhd|hdr|mgh|mgz|mnc|h5|hdf5|mat|npy|npz",
     "a volume or an array (NIfTI, NRRD, HDF5, NumPy, ...): export its slices as PNG or DICOM"),
    (rb"pk\x03\x04|rar!|7z\xbc\xaf|bzh|\xfd7zxz|.{257}ustar|\x1f\x8b",
     "zip|tar|gz|tgz|rar|7z|bz2|xz", "an archive: unpack it, and give the folder"),
    (rb"hsf-oct-|cmdb|mdbd|foct", "vol|e2e|sdb|fda|fds|oct|octa|ocu|img",
     "an OCT volume (Heidelberg, Topcon, Zeiss, ...): oct-converter of PyPI exports it as PNG"),
    (rb"....ftyp(avi[fso]|ma1|he[iv]|mif1|msf1)|\xff\x0a|....jxl |\xff\xd8.*\xff\xf7\0\x0b",
     "heic|heif|avif|jxl", "a picture in HEIC, AVIF, JPEG XL or JPEG-LS: convert it to PNG"),
    (rb"....ftyp", "mp4|avi|mov|mkv|webm|wmv",
     "a video: export its frames, with the patient in each path"),
    (rb"\s*<(!doctype )?html", "(?!)", "a web page, as of a failed download: download it again"),
    (rb"%pdf", "csv|tsv|xls|xlsx|parquet|json|xml|pdf",
     "no picture: give a table of labels with --labels"),
)  # fmt: skip


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
    """Returns whether the cause of an error is a file's content, and not the machine that reads it.

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
    except Exception as error:
        if isinstance(error, Reject) or not is_of_content(error):
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
    """Raises Reject for a picture of more than `MAX_PIXELS`, or of none, which ends the process."""
    if not width * height:
        raise Reject("undecodable", f"{width}x{height} pixels")
    if width * height > MAX_PIXELS:
        raise Reject("too_many_pixels", f"{width}x{height} pixels, more than {MAX_PIXELS:,}")


def what_is(name: str, start: bytes = b"") -> str | None:
    """Returns what a file is and what to do, by its first bytes or else its name; None if unknown.

    `start` is at least the first `START_BYTES`.
    """
    kinds = (kind for begins, _, kind in _KINDS if re.match(begins, start, re.S | re.I))
    names = (kind for _, ends, kind in _KINDS if re.search(rf"\.({ends})$", name, re.I))
    return next(kinds, None) or next(names, None)
