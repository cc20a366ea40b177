"""Files that hold more than their index or header says: all of it must be counted, or refused.

Two archives in one file, members that no index names, two pictures in one file, frames beyond the
number in a header. What went in is known here, and nothing is asked of another tool.
"""

from __future__ import annotations

import gzip
import io
import random
import struct
import tarfile
from pathlib import Path

import numpy as np
import pydicom
from dicom_files import dicom_file, in_syntax
from image_files import encoded
from PIL import Image

from campaign import archives, mutations, trees
from campaign.processes import Outcome
from tfrecord_io.decoding import preprocess
from tfrecord_io.rejects import Reject

_ZIPS = ("zip", "deflated", "zip64", "streamed")
_TARS = ("tar", "gnu", "pax", "tar.gz")
_FORMATS = ("PNG", "JPEG", "BMP", "GIF", "WEBP", "PPM", "TIFF")
#: Endings of UIDs below 1.2.840.10008.1.2: as it is, RLE, JPEG-LS, JPEG 2000.
_SYNTAXES = (".1", ".5", ".4.80", ".4.90")


def try_case(rng: random.Random, folder: Path) -> Outcome:
    """Makes one such file."""
    return rng.choice((_try_archive, _try_archive, _try_pictures, _try_frames))(rng, folder)


def _try_archive(rng: random.Random, folder: Path) -> Outcome:
    kind = rng.choice((*_ZIPS, *_TARS))
    path, contents = _pack(rng, kind, folder / "first")
    data = path.read_bytes()
    if kind in ("zip", "deflated") and rng.random() < 0.5:
        way, data, num_hidden = "hidden", *_hide(rng, data)
    else:
        other, more = _pack(rng, kind, folder / "second")
        data, num_hidden = _joined(rng, kind, data, other.read_bytes()), len(more)
        way = "joined"
    path.write_bytes(data)
    ledger, refusal = archives.list_archive(path, folder)
    what = f"{kind}, {way}, {num_hidden} files besides {len(contents)}"
    if ledger is None:
        return f"{way}, refused", list(archives.about(refusal)), what
    if not num_hidden:
        return "whole, read", [], what
    return f"{way}, read", [f"read as if whole: {ledger.num_files} files"], what


def _pack(rng: random.Random, kind: str, path: Path) -> tuple[Path, list[bytes]]:
    entries = trees.make_tree(rng, kind)
    return trees.pack(rng, kind, entries, path), [e.content for e in entries if e.kind == "file"]


def _joined(rng: random.Random, kind: str, first: bytes, second: bytes) -> bytes:
    """Returns two archives in one file, in one of the ways in which that happens."""
    if kind in _ZIPS:
        between = rng.choice((b"", bytes(rng.randrange(1, 5000)), rng.randbytes(rng.randrange(9))))
        return first + between + second
    if kind == "tar.gz":
        if rng.random() < 0.5:
            return first + second
        first, second = gzip.decompress(first), gzip.decompress(second)
        return gzip.compress(first + second, 1, mtime=0)
    return first + bytes(tarfile.BLOCKSIZE * rng.choice((0, 0, 1, 20, 3000))) + second


def _hide(rng: random.Random, data: bytes) -> tuple[bytes, int]:
    """Takes files out of a zip's index, and has its end record count the rest; says how many."""
    start, end, entries = mutations.zip_entries(data)
    files = [e for e in entries if struct.unpack_from("<I", e, 20)[0]]  # with content
    gone = rng.sample(files, min(len(files), rng.choice((1, 1, 2, len(files) // 2))))
    if len(gone) == len(entries):
        return data, 0
    kept = [entry for entry in entries if entry not in gone]
    directory, tail = b"".join(kept), bytearray(data[end:])
    struct.pack_into("<HHI", tail, 8, len(kept), len(kept), len(directory))
    return data[:start] + directory + bytes(tail), len(gone)


def _try_pictures(rng: random.Random, folder: Path) -> Outcome:
    """Joins two pictures, with nothing or with zeros between them."""
    formats = rng.choice((*_FORMATS, "TIFF", "TIFF")), rng.choice(_FORMATS)
    padding = bytes(rng.choice((0, 0, 1, 2, 7, 512, 4096, 70_000)))
    first, second = (encoded(_grey(rng), name) for name in formats)
    num_first = 1
    if formats[0] in ("TIFF", "GIF") and rng.random() < 0.5:
        first = encoded(_grey(rng), formats[0], save_all=True, append_images=[_grey(rng)])
        num_first = 2
    what = f"{num_first} {formats[0]}, {len(padding)} zeros, {formats[1]}"
    outcome, num_pictures, num_rejects = _decode(first + padding + second)
    if num_pictures > num_first or num_rejects:
        return f"pictures: {outcome}", [], what
    return f"pictures: {outcome}", ["the second picture is lost"], what


def _try_frames(rng: random.Random, folder: Path) -> Outcome:
    """Has the header of a DICOM file promise fewer frames than there are."""
    num_frames, syntax = rng.choice((2, 3, 5)), rng.choice(_SYNTAXES)
    promised = rng.choice((None, *range(1, num_frames)))
    frames = np.stack([np.asarray(_grey(rng, (40, 40))) for _ in range(num_frames)])
    dataset = pydicom.dcmread(
        io.BytesIO(in_syntax(dicom_file(frames), f"1.2.840.10008.1.2{syntax}"))
    )
    has_table = rng.random() < 0.5
    if syntax != ".1" and not has_table:
        pixels = pydicom.encaps.generate_frames(dataset.PixelData, number_of_frames=num_frames)
        dataset.PixelData = pydicom.encaps.encapsulate(list(pixels), has_bot=False)
    if promised is None:
        del dataset.NumberOfFrames
    else:
        dataset.NumberOfFrames = promised
    file = io.BytesIO()
    dataset.save_as(file)
    what = f"DICOM {syntax}, {num_frames} frames, {promised} promised, table {has_table}"
    outcome, num_pictures, num_rejects = _decode(file.getvalue())
    lost = [] if num_rejects or num_pictures == num_frames else ["frames are lost"]
    return f"frames: {outcome}", lost, what


def _decode(data: bytes) -> tuple[str, int, int]:
    """Decodes all pictures that a file is said to hold; counts pictures and rejects."""
    wanted = preprocess.Preprocessing(height=8, width=8)
    pictures, num_rejects = 0, 0
    try:
        found = preprocess.find_pictures("picture", len(data), data, lambda: io.BytesIO(data))
    except Reject:
        return "rejected", 0, 1
    for number in found.frames:
        try:
            preprocess.decode_image(data, wanted, number)
            pictures += 1
        except Reject:
            num_rejects += 1
    return ("rejected" if num_rejects else "decoded"), pictures, num_rejects


def _grey(rng: random.Random, size: tuple[int, int] | None = None) -> Image.Image:
    height, width = size or (rng.randrange(4, 40), rng.randrange(4, 40))
    return Image.frombytes("L", (width, height), rng.randbytes(height * width))
