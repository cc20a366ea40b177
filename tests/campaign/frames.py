"""DICOM files in several transfer syntaxes, and TIFF files of several pages, whole and damaged.

A whole file must give the pixels that were written, by arithmetic of this module. Of a damaged one,
what is decoded must be what pydicom, or Pillow by itself, finds in the same bytes.
"""

from __future__ import annotations

import io
import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pydicom
from dicom_files import dicom_file, in_syntax
from image_files import encoded
from PIL import Image
from tiff_files import NEW_SUBFILE_TYPE, SUBFILE_TYPE, tiff_file

from campaign import mutations
from tfrecord_io.decoding import dicom_tags, options, preprocess, tiff_pages
from tfrecord_io.rejects import Reject

#: Endings of UIDs below 1.2.840.10008.1.2.
_SYNTAXES = ("", ".1", ".1.99", ".2", ".4.80", ".4.90", ".5")
_KINDS = ({}, {}, {}, {NEW_SUBFILE_TYPE: 2}, {NEW_SUBFILE_TYPE: 1}, {NEW_SUBFILE_TYPE: 5},
          {NEW_SUBFILE_TYPE: 4}, {SUBFILE_TYPE: 2}, {SUBFILE_TYPE: 3})  # fmt: skip
_COMPRESSIONS = ("raw", "tiff_lzw", "tiff_adobe_deflate", "packbits")
_WINDOW = {"center": (0x0028, 0x1050, "DS"), "width": (0x0028, 0x1051, "DS"),
           "slope": (0x0028, 0x1053, "DS"), "intercept": (0x0028, 0x1052, "DS")}  # fmt: skip


def try_case(rng: random.Random, folder: Path) -> tuple[str, list[str], str]:
    """Makes one file and has its frames decoded; see `archives.try_case`."""
    return rng.choice((_try_dicom, _try_tiff))(rng)


def _try_dicom(rng: random.Random) -> tuple[str, list[str], str]:
    syntax = rng.choice(_SYNTAXES)
    bits = rng.choice((8, 8, 10, 12, 16))
    is_signed = bits > 8 and rng.random() < 0.4
    photometric = rng.choice(("MONOCHROME1", "MONOCHROME2", "MONOCHROME2"))
    num_frames = rng.choice((1, 1, 2, 3, 7))
    # The codecs of JPEG 2000 and JPEG-LS fail to write some that are smaller.
    height, width = (rng.randrange(32 if syntax.startswith(".4") else 1, 48) for _ in range(2))
    lowest = -(1 << bits - 1) if is_signed else 0
    frames = _noise(rng, (num_frames, height, width), lowest, lowest + (1 << bits))
    frames = frames.astype(np.dtype(f"{'i' if is_signed else 'u'}{1 if bits == 8 else 2}"))
    facts = {}
    if rng.random() < 0.5:
        facts = {"center": rng.randrange(-100, 3000), "width": rng.randrange(1, 4000)}
        if rng.random() < 0.5:
            facts |= {"slope": rng.choice((1, 2, 5)), "intercept": rng.randrange(-1024, 1024)}
    elements = {_WINDOW[name]: str(value) for name, value in facts.items()}
    pixels = frames[0] if num_frames == 1 else frames
    data = dicom_file(pixels, elements, photometric=photometric, bits=bits)
    data = in_syntax(data, f"1.2.840.10008.1.2{syntax}")
    data, done = _damaged(rng, data)
    what = f"DICOM {syntax} {bits} bits {num_frames} frames {facts} {', '.join(done) or 'whole'}"
    dtype = rng.choice(options.DTYPES)
    wanted = preprocess.Preprocessing(height=height, width=width, dtype=dtype)
    header = dicom_tags.read_header(data)
    problems = []
    if not done and (header is None or header.num_frames != num_frames):
        problems.append(f"the header is {header}")

    def truth(number: int) -> np.ndarray:
        span = (1 << bits) - 1
        stored = frames[number - 1].astype(np.float64)
        low, high = (lowest, lowest + span)
        if dtype == "uint8" and bits > 8 and not facts:  # the range of the frame's values
            low, high = stored.min(), stored.max()
        shares = (stored - low) / max(high - low, 1e-6)
        if dtype == "uint8" and facts:
            values = stored * facts.get("slope", 1) + facts.get("intercept", 0)
            # PS3.3, C.11.2.1.2.1
            shares = (values - facts["center"] + 0.5) / max(facts["width"] - 1, 1e-6) + 0.5
            shares = np.clip(shares, 0, 1)
        shares = 1 - shares if photometric == "MONOCHROME1" else shares
        return shares * (255 if dtype == "uint8" else 65_535 if bits == 8 else span)

    def elsewhere(number: int) -> np.ndarray | None:
        if dtype == "uint8":
            return None
        read = pydicom.dcmread(io.BytesIO(data))
        values = pydicom.pixels.pixel_array(io.BytesIO(data), index=number - 1, raw=True)
        if read.BitsStored <= 8 or read.PhotometricInterpretation != "MONOCHROME2":
            return None
        least = -(1 << read.BitsStored - 1) if read.PixelRepresentation else 0
        return np.clip(values.astype(int), least, least + (1 << read.BitsStored) - 1) - least

    numbers = [0] if num_frames == 1 else range(1, num_frames + 1)
    outcome, more = _decode(data, wanted, numbers, None if done else truth, elsewhere)
    return f"DICOM {outcome}", problems + more, what


def _try_tiff(rng: random.Random) -> tuple[str, list[str], str]:
    height, width = rng.randrange(1, 40), rng.randrange(1, 40)
    num_pages = rng.choice((2, 2, 3, 7))
    dtype = rng.choice(options.DTYPES)
    pages = _noise(rng, (num_pages, height, width), 0, np.iinfo(dtype).max + 1).astype(dtype)
    tags = [rng.choice(_KINDS) for _ in pages]
    if rng.random() < 0.5:
        tags = [{} for _ in pages]
        images = [Image.fromarray(page) for page in pages]
        data = encoded(images[0], "TIFF", save_all=True, append_images=images[1:],
                       compression=rng.choice(_COMPRESSIONS))  # fmt: skip
    else:
        # Pillow does not read a big-endian BigTIFF.
        order, is_big = rng.choice((("<", False), (">", False), ("<", True)))
        data = tiff_file(pages, dict(enumerate(tags, 1)), order=order, is_big_tiff=is_big)
    data, done = _damaged(rng, data)
    what = f"TIFF {dtype} {tags} {', '.join(done) or 'whole'}"
    found = (
        tiff_pages.read_pages(io.BytesIO(data), is_whole=True) if tiff_pages.is_tiff(data) else []
    )
    problems = []
    is_image = [t.get(NEW_SUBFILE_TYPE, 0) in (0, 2) and t.get(SUBFILE_TYPE) != 2 for t in tags]
    if not done and [not page.kind for page in found] != is_image:
        problems.append(f"the pages are {found}")
    for length in (rng.randrange(len(data)), len(data)) if found else ():
        start = tiff_pages.read_pages(io.BytesIO(data[:length]), is_whole=False)
        if start is not None and start != found:
            problems.append(f"the first {length} bytes have the pages {start}")
    wanted = preprocess.Preprocessing(height=height, width=width, dtype=dtype)

    def elsewhere(number: int) -> np.ndarray | None:
        with Image.open(io.BytesIO(data), formats=("TIFF",)) as image:
            image.seek(number - 1)
            # Pixels that are in the header are those of another header.
            if min(image.tag_v2.get(273, (16,))) < 16:
                return None
            if image.mode not in ("L", "I;16") or image.getexif().get(0x0112, 1) != 1:
                return None
            # Pillow turns white-is-zero round in files of eight bits only.
            if image.mode == "I;16" and image.tag_v2.get(262) == 0:
                return None
            values = np.asarray(image).astype(int)
        return values * 257 if image.mode == "L" and dtype == "uint16" else values

    numbers = range(1, len(found) + 1)
    truth = None if done else lambda number: pages[number - 1]
    outcome, more = _decode(data, wanted, numbers, truth, elsewhere)
    return f"TIFF {outcome}", problems + more, what


def _decode(
    data: bytes,
    wanted: preprocess.Preprocessing,
    numbers: range | list[int],
    truth: Callable[[int], np.ndarray] | None,
    elsewhere: Callable[[int], np.ndarray | None],
) -> tuple[str, list[str]]:
    """Decodes frames and compares them with what they must be; returns outcome and complaints."""
    problems = []
    num_rejects = 0
    for number in numbers:
        try:
            decoded = preprocess.decode_image(data, wanted, number)
        except Reject as reject:
            num_rejects += 1
            if truth:
                problems.append(f"frame {number} of a whole file is rejected: {reject}")
            continue
        if (decoded.height, decoded.width) != (wanted.height, wanted.width):
            continue  # and resized, which nothing else does so
        pixels = np.frombuffer(decoded.pixels, wanted.dtype).reshape(wanted.height, wanted.width)
        expected = truth(number) if truth else _or_none(elsewhere, max(number, 1))
        if expected is not None and expected.shape == pixels.shape:
            worst = np.abs(pixels - expected.astype(np.float64)).max()
            if worst > 0.501:
                problems.append(f"frame {number} differs by {worst}")
    if not truth:
        return "damaged, some rejected" if num_rejects else "damaged, decoded", problems
    return "whole", problems


def _or_none(decode: Callable[[int], np.ndarray | None], number: int) -> np.ndarray | None:
    try:
        return decode(number)
    except Exception:  # whatever it raises, it refuses
        return None


def _noise(rng: random.Random, shape: tuple[int, ...], low: int, high: int) -> np.ndarray:
    return np.random.default_rng(rng.getrandbits(32)).integers(low, high, shape)


def _damaged(rng: random.Random, data: bytes) -> tuple[bytes, list[str]]:
    done = []
    for _ in range(rng.choice((0, 0, 1, 1, 2))):
        way = rng.choice(mutations.ANY)
        data = bytes(way(rng, bytearray(data))) or b"\0"
        done.append(way.__name__)
    return data, done
