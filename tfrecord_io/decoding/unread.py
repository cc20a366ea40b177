"""What a file is that is not read, by its first bytes or its name, and what to do with it.

>>> what_is("a.jpg", b"version https://git-lfs.github.com/spec/v1")
'a pointer of Git LFS: git lfs pull fetches the file'
>>> what_is("a.nii", b"/annex/objects/SHA256E-s9--0a.nii")
'a pointer of git-annex: datalad get fetches the file'
>>> what_is("brain.NII.gz")
'a NIfTI volume: export its slices as PNG or DICOM'
"""

from __future__ import annotations

import re

_BARE = "DICOM without its preamble: dcmconv old.dcm new.dcm of DCMTK writes one that has it"
_ARCHIVE = "an archive: unpack it, and give the folder"
_NIFTI = "a NIfTI volume: export its slices as PNG or DICOM"
_ARRAYS = "arrays of HDF5, MATLAB or NumPy: export them as PNG, with a table of labels"
_VIDEO = "a video: export its frames, with the patient in each path"
_TABLE = "a table: give it with --labels if it names the images"
_PDF = "a PDF: export its pages or pictures"
_HTML = "a web page, perhaps of a failed download: download the file again"
_NOTES = "annotations, perhaps: a table of labels can name the class of each image"
_CONVERT = "a picture in plain JPEG 2000: convert it to PNG"
_HEIC = "a picture in HEIC: convert it to PNG, as with heif-convert of libheif"
_AVIF = "a picture in AVIF: convert it to PNG, as with avifdec of libavif"
_JPEG_XL = "a picture in JPEG XL: convert it to PNG with djxl of libjxl"
_RAW = "a picture in a format of a camera or program: convert it to PNG"
_CONVERTER = "the package oct-converter of PyPI exports its B-scans as PNG"
_HEIDELBERG = f"an OCT volume of Heidelberg (.vol, .e2e): {_CONVERTER}, or HEYEX as DICOM or TIFF"
_TOPCON = f"an OCT volume of Topcon (.fda, .fds): {_CONVERTER}"
_OCT = f"an OCT volume of Optovue, Bioptigen, Zeiss or another device: {_CONVERTER}"
_ZEISS = f"raw pixels of Zeiss Cirrus: {_CONVERTER}; or of Analyze, beside a .hdr: export as PNG"
_VOLUME = "a volume (NRRD, MetaImage, Analyze, MGH): export its slices as PNG or DICOM"
_MICROSCOPE = "a microscope's file: export it as TIFF, as with bfconvert of Bio-Formats"

# The first element of DICOM is of group 2 or 8, in either order of bytes.
_BARE_START = re.compile(rb"\x02\0[\0-\x1f]\0u[il]|\x08\0[\0-\x1f]\0|\0\x08\0[\0-\x1f]")

# How files begin that may be named like pictures, or have no ending: where, and in any case.
_STARTS = (
    (0, b"version https://git-lfs", "a pointer of Git LFS: git lfs pull fetches the file"),
    (0, b"/annex/objects/", "a pointer of git-annex: datalad get fetches the file"),
    (0, (b"pk\x03\x04", b"rar!", b"7z\xbc\xaf", b"bzh", b"\xfd7zxz"), _ARCHIVE),
    (257, b"ustar", _ARCHIVE),
    (0, b"\x1f\x8b", "compressed with gzip: unpack it"),
    (0, (b"<!doctype html", b"<html"), _HTML),
    (0, b"%pdf", _PDF),
    (0, (b"hsf-oct-", b"cmdb", b"mdbd"), _HEIDELBERG),
    (0, b"foct", _TOPCON),
    (0, b"\xff\n", _JPEG_XL),
    (4, b"jxl ", _JPEG_XL),
    (0, b"\xffo\xffq", _CONVERT),
    (4, b"jp  ", _CONVERT),
)

#: As many bytes as tell an archive.
START_BYTES = 512

_ENDINGS = {
    (".nii", ".nii.gz"): _NIFTI,
    (".avif", ".avifs"): _AVIF,
    (".heic", ".heif", ".hif"): _HEIC,
    (".jxl",): _JPEG_XL,
    (".vol", ".e2e", ".sdb"): _HEIDELBERG,
    (".fda", ".fds"): _TOPCON,
    (".oct", ".octa", ".ocu"): _OCT,
    (".img",): _ZEISS,
    (".nrrd", ".nhdr", ".mha", ".mhd", ".hdr", ".mgh", ".mgz", ".mnc", ".par", ".rec"): _VOLUME,
    (".nd2", ".czi", ".lif", ".lsm", ".oib", ".oif", ".oir", ".vsi", ".mrxs", ".ims", ".dm3",
     ".dm4", ".mrc", ".stk", ".zvi", ".svs", ".ndpi", ".scn", ".bif"): _MICROSCOPE,
    (".psd", ".exr", ".fits", ".cr2", ".cr3", ".nef", ".arw", ".dng", ".raf", ".orf"): _RAW,
    (".zip", ".tar", ".gz", ".tgz", ".rar", ".7z", ".bz2", ".xz"): _ARCHIVE,
    (".h5", ".hdf5", ".mat", ".npy", ".npz"): _ARRAYS,
    (".mp4", ".avi", ".mov", ".mkv", ".webm", ".wmv"): _VIDEO,
    (".csv", ".tsv", ".xls", ".xlsx", ".parquet"): _TABLE,
    (".json", ".xml"): _NOTES,
    (".pdf",): _PDF,
}  # fmt: skip


# The brands of a file in ISO's base media format, such as a video, that make it a picture.
_BRANDS = (
    ({b"avif", b"avis", b"avio", b"ma1b", b"ma1a"}, _AVIF),
    ({b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"hevm", b"hevs", b"mif1", b"mif2",
      b"msf1", b"heif", b"j2ki"}, _HEIC),
    ({b"crx "}, _RAW),
)  # fmt: skip


def _media_of(start: bytes) -> str:
    """Returns what a file of boxes is, by its brands: the main one, and those it is read as."""
    end = int.from_bytes(start[:4], "big")
    brands = {start[place : place + 4] for place in (8, *range(16, min(end, len(start)), 4))}
    return next((told for some, told in _BRANDS if brands & some), _VIDEO)


def what_is(name: str, start: bytes = b"") -> str | None:
    """Returns what a file is and what to do, by its first bytes or else its name; None if unknown.

    `start` is at least the first `START_BYTES`.
    """
    start, text = start.lower(), start.lstrip().lower()
    if _BARE_START.match(start):
        return _BARE
    for place, found, told in _STARTS:
        if (start if place else text).startswith(found, place):
            return told
    if start[4:8] == b"ftyp":
        return _media_of(start)
    return next((told for ends, told in _ENDINGS.items() if name.lower().endswith(ends)), None)
