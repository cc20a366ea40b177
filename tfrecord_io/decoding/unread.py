"""Names files that neither Pillow nor pydicom nor tifffile reads, and says what to do with them.

>>> what_is("a.jpg", b"version https://git-lfs.github.com/spec/v1")
'a pointer of Git LFS: git lfs pull fetches the file'
>>> what_is("brain.NII.gz")
'a NIfTI volume: export its slices as PNG or DICOM'
"""

from __future__ import annotations

import re

#: As many bytes as tell what a file is.
START_BYTES = 512

_ARCHIVE = "an archive: unpack it, and give the folder"
_HEIC = "a picture in HEIC: convert it to PNG, as with heif-convert of libheif"
_OCT = "an OCT volume (Heidelberg, Topcon, Zeiss, ...): oct-converter of PyPI exports it as PNG"
_PDF = "a PDF: export its pages or pictures"
_VIDEO = "a video: export its frames, with the patient in each path"

# How files begin that may be named like pictures, or have no ending.
_STARTS = {
    re.compile(start, re.DOTALL | re.IGNORECASE): kind
    for start, kind in {
        rb".{128}DICM": "DICOM: give its name the ending .dcm",
        # The first element of DICOM is of group 2 or 8, in either order of bytes.
        rb"\x02\0[\0-\x1f]\0u[il]|\x08\0[\0-\x1f]\0|\0\x08\0[\0-\x1f]": "DICOM without its "
        "preamble: dcmconv old.dcm new.dcm of DCMTK writes one that has it",
        rb"version https://git-lfs": "a pointer of Git LFS: git lfs pull fetches the file",
        rb"/annex/objects/": "a pointer of git-annex: datalad get fetches the file",
        rb"pk\x03\x04|rar!|7z\xbc\xaf|bzh|\xfd7zxz|.{257}ustar|\x1f\x8b": _ARCHIVE,
        rb"\s*<(!doctype )?html": "a web page, perhaps of a failed download: download it again",
        rb"%pdf": _PDF,
        rb"hsf-oct-|cmdb|mdbd|foct": _OCT,
        rb"\xff\x0a|....jxl ": "a picture in JPEG XL: convert it to PNG with djxl of libjxl",
        rb"\xff\xd8.*\xff\xf7\0\x0b": "a picture in JPEG-LS: convert it to PNG",
        rb"....ftyp(avi[fso]|ma1)": "a picture in AVIF: convert it to PNG, as with avifdec",
        rb"....ftyp(he[iv]|mif1|msf1)": _HEIC,
        rb"....ftyp": _VIDEO,
    }.items()
}

_ENDINGS = {
    (".nii", ".nii.gz"): "a NIfTI volume: export its slices as PNG or DICOM",
    (".heic", ".heif"): _HEIC,
    (".vol", ".e2e", ".sdb", ".fda", ".fds", ".oct", ".octa", ".ocu", ".img"): _OCT,
    (".nrrd", ".nhdr", ".mha", ".mhd", ".hdr", ".mgh", ".mgz", ".mnc"): "a volume (NRRD, "
    "MetaImage, Analyze, MGH): export its slices as PNG or DICOM",
    (".nd2", ".czi", ".lif", ".lsm", ".vsi", ".mrxs", ".svs", ".ndpi"): "a microscope's file: "
    "export it as TIFF, as with bfconvert of Bio-Formats",
    (".zip", ".tar", ".gz", ".tgz", ".rar", ".7z", ".bz2", ".xz"): _ARCHIVE,
    (".h5", ".hdf5", ".mat", ".npy", ".npz"): "arrays of HDF5, MATLAB or NumPy: export them as "
    "PNG, with a table of labels",
    (".mp4", ".avi", ".mov", ".mkv", ".webm", ".wmv"): _VIDEO,
    (".csv", ".tsv", ".xls", ".xlsx", ".parquet"): "a table: give it with --labels if it names "
    "the images",
    (".json", ".xml"): "annotations, perhaps: a table of labels can name the class of each image",
    (".pdf",): _PDF,
}


def what_is(name: str, start: bytes = b"") -> str | None:
    """Returns what a file is and what to do, by its first bytes or else its name; None if unknown.

    `start` is at least the first `START_BYTES`.
    """
    kinds = (kind for pattern, kind in _STARTS.items() if pattern.match(start))
    endings = (kind for ends, kind in _ENDINGS.items() if name.lower().endswith(ends))
    return next(kinds, None) or next(endings, None)
