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
_HDF5 = "HDF5: export its arrays as PNG, with a table of labels"
_MATLAB = "a file of MATLAB: export its arrays as PNG, with a table of labels"
_NUMPY = "arrays of NumPy: export them as PNG, with a table of labels"
_VIDEO = "a video: export its frames, with the patient in each path"
_TABLE = "a table: give it with --labels if it names the images"
_HTML = "a web page, perhaps of a failed download: download the file again"

# How files begin: where, with which bytes.
_STARTS = (
    (0, b"version https://git-lfs", "a pointer of Git LFS: git lfs pull fetches the file"),
    (0, b"PK\x03\x04", _ARCHIVE), (0, b"Rar!", _ARCHIVE), (0, b"7z\xbc\xaf", _ARCHIVE),
    (0, b"BZh", _ARCHIVE), (0, b"\xfd7zXZ", _ARCHIVE), (257, b"ustar", _ARCHIVE),
    (0, b"\x1f\x8b", "compressed with gzip: unpack it"),
    (344, b"n+1\0", _NIFTI), (344, b"ni1\0", _NIFTI),
    (0, b"\x89HDF", _HDF5), (0, b"MATLAB 5.0", _MATLAB), (0, b"\x93NUMPY", _NUMPY),
    (0, b"PAR1", _TABLE), (8, b"AVI ", _VIDEO), (0, b"\x1aE\xdf\xa3", _VIDEO),
    (4, b"ftypheic", "a HEIC picture: convert it to JPEG or PNG"), (4, b"ftyp", _VIDEO),
    (4, b"jP  ", "JPEG 2000 without DICOM: convert it to PNG"),
    (0, b"\xff\x4f\xff\x51", "JPEG 2000 without DICOM: convert it to PNG"),
    (0, b"%PDF", "a PDF: export its pages or pictures"),
    (0, b"<!doctype html", _HTML), (0, b"<html", _HTML),
    (0, b"<svg", "a drawing in SVG: export it as PNG"),
    (0, b"<?xml", "XML, such as the annotations of an image"),
    (0, b"{", "JSON, such as the annotations of images"),
)  # fmt: skip

#: As many bytes as tell a NIfTI volume.
START_BYTES = 352

_ENDINGS = {
    (".zip", ".tar", ".tar.gz", ".tgz", ".rar", ".7z", ".tar.bz2", ".tar.xz"): _ARCHIVE,
    (".nii", ".nii.gz"): _NIFTI,
    (".h5", ".hdf5"): _HDF5,
    (".mat",): _MATLAB,
    (".npy", ".npz"): _NUMPY,
    (".mp4", ".avi", ".mov", ".mkv", ".webm", ".wmv"): _VIDEO,
    (".csv", ".tsv", ".xls", ".xlsx", ".parquet"): _TABLE,
    (".json", ".xml"): "annotations, perhaps: a table of labels can name the class of each image",
    (".pdf",): "a PDF: export its pages or pictures",
}


def what_is(name: str, start: bytes = b"") -> str | None:
    """Returns what a file is and what to do, by its first bytes or else its name; None if unknown.

    `start` is at least the first `START_BYTES`; of a compressed file, some more.
    """
    if start.startswith(b"\x1f\x8b"):
        with contextlib.suppress(zlib.error):
            start = zlib.decompressobj(31).decompress(start, START_BYTES) or start
    lower = start.lstrip().lower()
    for place, found, told in _STARTS:
        if start.startswith(found, place) or (place == 0 and lower.startswith(found.lower())):
            return told
    name = name.lower()
    return next((told for ends, told in _ENDINGS.items() if name.endswith(ends)), None)
