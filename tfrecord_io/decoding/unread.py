"""What a file is that is not read, by its first bytes or its name, and what to do with it.

>>> what_is("a.jpg", b"version https://git-lfs.github.com/spec/v1")
'a pointer of Git LFS: git lfs pull fetches the file'
>>> what_is("brain.NII.gz")
'a NIfTI volume: export its slices as PNG or DICOM'
"""

from __future__ import annotations

import contextlib
import zlib

_ARCHIVE = "an archive: unpack it, and give the folder"
_NIFTI = "a NIfTI volume: export its slices as PNG or DICOM"
_ARRAYS = "arrays of HDF5, MATLAB or NumPy: export them as PNG, with a table of labels"
_VIDEO = "a video: export its frames, with the patient in each path"
_TABLE = "a table: give it with --labels if it names the images"
_PDF = "a PDF: export its pages or pictures"
_HTML = "a web page, perhaps of a failed download: download the file again"
_NOTES = "annotations, perhaps: a table of labels can name the class of each image"
_CONVERT = "a picture that is not read, in HEIC, SVG or plain JPEG 2000: convert it to PNG"

# How files begin: where, with which bytes in any case.
_STARTS = (
    (0, b"version https://git-lfs", "a pointer of Git LFS: git lfs pull fetches the file"),
    (0, b"pk\x03\x04", _ARCHIVE), (0, b"rar!", _ARCHIVE), (0, b"7z\xbc\xaf", _ARCHIVE),
    (0, b"bzh", _ARCHIVE), (0, b"\xfd7zxz", _ARCHIVE), (257, b"ustar", _ARCHIVE),
    (0, b"\x1f\x8b", "compressed with gzip: unpack it"),
    (344, b"n+1\0", _NIFTI), (344, b"ni1\0", _NIFTI),
    (0, b"\x89hdf", _ARRAYS), (0, b"matlab 5.0", _ARRAYS), (0, b"\x93numpy", _ARRAYS),
    (0, b"par1", _TABLE), (8, b"avi ", _VIDEO), (0, b"\x1ae\xdf\xa3", _VIDEO),
    (4, b"ftypheic", _CONVERT), (4, b"ftyp", _VIDEO), (4, b"jp  ", _CONVERT),
    (0, b"\xffo\xffq", _CONVERT), (0, b"<svg", _CONVERT), (0, b"%pdf", _PDF),
    (0, b"<!doctype html", _HTML), (0, b"<html", _HTML), (0, b"<?xml", _NOTES), (0, b"{", _NOTES),
)  # fmt: skip

#: As many bytes as tell a NIfTI volume.
START_BYTES = 352

_ENDINGS = {
    (".nii", ".nii.gz"): _NIFTI,
    (".zip", ".tar", ".gz", ".tgz", ".rar", ".7z", ".bz2", ".xz"): _ARCHIVE,
    (".h5", ".hdf5", ".mat", ".npy", ".npz"): _ARRAYS,
    (".mp4", ".avi", ".mov", ".mkv", ".webm", ".wmv"): _VIDEO,
    (".csv", ".tsv", ".xls", ".xlsx", ".parquet"): _TABLE,
    (".json", ".xml"): _NOTES,
    (".pdf",): _PDF,
}


def what_is(name: str, start: bytes = b"") -> str | None:
    """Returns what a file is and what to do, by its first bytes or else its name; None if unknown.

    `start` is at least the first `START_BYTES`; of a compressed file, some more.
    """
    if start.startswith(b"\x1f\x8b"):
        with contextlib.suppress(zlib.error):
            start = zlib.decompressobj(31).decompress(start, START_BYTES) or start
    start, text = start.lower(), start.lstrip().lower()
    for place, found, told in _STARTS:
        if (start if place else text).startswith(found, place):
            return told
    return next((told for ends, told in _ENDINGS.items() if name.lower().endswith(ends)), None)
