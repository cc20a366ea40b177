"""Image files of every format that Pillow writes, DICOM files and TIFF files of several pages.

A whole file must give the pixels that were written, by arithmetic of this module. Of a damaged one,
what is decoded must be what another decoder finds in the same bytes, if it finds something.
"""

from __future__ import annotations

import functools
import io
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pydicom
from dicom_files import dicom_file, in_syntax
from image_files import encoded
from PIL import Image
from tiff_files import NEW_SUBFILE_TYPE, SUBFILE_TYPE, tiff_file

from campaign import mutations
from campaign.processes import Outcome
from tfrecord_io.decoding import dicom_tags, options, preprocess, tiff_pages
from tfrecord_io.rejects import Reject

_COMPRESSIONS = ("raw", "tiff_lzw", "tiff_adobe_deflate", "packbits")
_MODES = ("1", "L", "LA", "P", "RGB", "RGBA")
#: Format, modes in which nothing is lost, and settings to choose from.
_EXACT: tuple[tuple[str, tuple[str, ...], tuple[dict[str, object], ...]], ...] = (
    ("PNG", _MODES, ({}, {"optimize": True}, {"compress_level": 0})),
    ("BMP", ("1", "L", "P", "RGB"), ({},)),
    ("TIFF", _MODES, tuple({"compression": c} for c in _COMPRESSIONS)),
    ("GIF", ("L", "P"), ({}, {"interlace": 1})),
    ("WEBP", ("RGB", "RGBA"), ({"lossless": True, "exact": True},)),
    ("PPM", ("1", "L", "RGB"), ({},)),
)
_LOSSY = (
    ("JPEG", ("L", "RGB"), ({}, {"progressive": True}, {"quality": 30}, {"subsampling": 0})),
    ("TIFF", ("L", "RGB"), ({"compression": "jpeg"},)),
    ("WEBP", ("RGB",), ({"quality": 60},)),
)
#: What has no faithful conversion to 8-bit grey or RGB, or is not read at all.
_REFUSED = (
    ("JPEG", ("CMYK",), ({},)),
    ("PNG", ("I", "I;16"), ({},)),
    ("TIFF", ("CMYK", "YCbCr", "LAB", "I", "I;16", "F"), ({},)),
    ("PPM", ("I",), ({},)),
    ("JPEG2000", ("L", "RGB"), ({},)),
    ("TGA", ("L", "RGB"), ({},)),
    ("PCX", ("L", "RGB"), ({},)),
    ("SGI", ("L", "RGB"), ({},)),
    ("ICO", ("RGBA",), ({},)),
    ("IM", ("L",), ({},)),
    ("DDS", ("RGB",), ({},)),
    ("PDF", ("L",), ({},)),
    ("EPS", ("L",), ({},)),
)
_MODES_WITH_ALPHA = ("LA", "RGBA")
_ORIENTATION = 0x0112
#: Pixels as a viewer shows them, from pixels as they are stored, by EXIF's number.
_TURNS: dict[int, Callable[[np.ndarray], np.ndarray]] = {
    1: lambda a: a, 2: lambda a: a[:, ::-1], 3: lambda a: a[::-1, ::-1], 4: lambda a: a[::-1],
    5: lambda a: a.swapaxes(0, 1), 6: lambda a: np.rot90(a, -1),
    7: lambda a: a[::-1, ::-1].swapaxes(0, 1), 8: lambda a: np.rot90(a),
}  # fmt: skip


#: Endings of UIDs below 1.2.840.10008.1.2.
_SYNTAXES = ("", ".1", ".2", ".4.80", ".4.90", ".5")
_KINDS = ({}, {}, {}, {NEW_SUBFILE_TYPE: 2}, {NEW_SUBFILE_TYPE: 1}, {NEW_SUBFILE_TYPE: 5},
          {NEW_SUBFILE_TYPE: 4}, {SUBFILE_TYPE: 2}, {SUBFILE_TYPE: 3})  # fmt: skip
_WINDOW = {"center": (0x0028, 0x1050, "DS"), "width": (0x0028, 0x1051, "DS"),
           "slope": (0x0028, 0x1053, "DS"), "intercept": (0x0028, 0x1052, "DS")}  # fmt: skip


#: Returns the pixels of a picture, by its number in the file, or None if nothing is known of them.
Decode = Callable[[Any], np.ndarray | None]


def try_image(rng: random.Random, folder: Path) -> Outcome:
    """Makes one image file and has it decoded."""
    group = rng.choice((_EXACT, _EXACT, _LOSSY, _REFUSED))
    file_format, modes, choices = rng.choice(group)
    mode, settings = rng.choice(modes), dict(rng.choice(choices))
    height, width = rng.randrange(1, 40), rng.randrange(1, 40)
    image = _picture(rng, mode, height, width)
    turn = 1
    if file_format in ("JPEG", "PNG", "TIFF", "WEBP") and rng.random() < 0.3:
        turn = rng.randrange(1, 9)
        exif = Image.Exif()
        exif[_ORIENTATION] = turn
        settings["exif"] = exif
    data, done = mutations.damage(rng, encoded(image, file_format, **settings))
    what = f"{file_format} {mode} {settings or ''} {', '.join(done) or 'whole'}"
    if turn > 4:
        height, width = width, height
    wanted = preprocess.Preprocessing(height=height, width=width, channels=rng.choice((1, 3, 3)))

    def pixels(_: None) -> np.ndarray | None:
        rgb = None
        if done or group is not _EXACT:
            rgb = _decode_elsewhere(data, file_format)
        # All parts of a PNG have checksums, so what is decoded is what was saved.
        if rgb is None and (file_format == "PNG" or (not done and group is _EXACT)):
            rgb = _as_rgb(image)
        return None if rgb is None else _with_channels(_TURNS[turn](rgb), wanted.channels)

    is_due = not done and group is not _REFUSED and not _has_alpha(image)
    outcome, problems = _compare(data, wanted, [None], pixels, is_due=is_due)
    if not done and group is _REFUSED and "rejected" not in outcome:
        problems.append("decoded, though nothing can do so faithfully")
    return outcome, problems, what


def try_frames(rng: random.Random, folder: Path) -> Outcome:
    """Makes one file of several pictures and has them decoded."""
    return rng.choice((_try_dicom, _try_tiff))(rng)


def _try_dicom(rng: random.Random) -> Outcome:
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
    data, done = mutations.damage(rng, data)
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
        values = pydicom.pixels.pixel_array(io.BytesIO(data), index=max(number, 1) - 1, raw=True)
        if read.BitsStored <= 8 or read.PhotometricInterpretation != "MONOCHROME2":
            return None
        least = -(1 << read.BitsStored - 1) if read.PixelRepresentation else 0
        return np.clip(values.astype(int), least, least + (1 << read.BitsStored) - 1) - least

    numbers = [0] if num_frames == 1 else range(1, num_frames + 1)
    outcome, more = _compare(data, wanted, numbers, elsewhere if done else truth, is_due=not done)
    return f"DICOM {outcome}", problems + more, what


def _try_tiff(rng: random.Random) -> Outcome:
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
    data, done = mutations.damage(rng, data)
    what = f"TIFF {dtype} {tags} {', '.join(done) or 'whole'}"
    found = (
        tiff_pages.read_pages(io.BytesIO(data), is_whole=True) if tiff_pages.is_tiff(data) else []
    )
    problems = []
    is_image = [t.get(NEW_SUBFILE_TYPE, 0) in (0, 2) and t.get(SUBFILE_TYPE) != 2 for t in tags]
    if not done and [not kind for kind in found] != is_image:
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
    pixels = elsewhere if done else lambda number: pages[number - 1]
    outcome, more = _compare(data, wanted, numbers, pixels, is_due=not done)
    return f"TIFF {outcome}", problems + more, what


def _compare(
    data: bytes,
    wanted: preprocess.Preprocessing,
    numbers: Sequence[int | None],
    pixels: Decode,
    *,
    is_due: bool,
) -> tuple[str, list[str]]:
    """Decodes pictures and compares them with what they must be; returns outcome and complaints.

    Args:
        data: a file.
        wanted: how it is decoded.
        numbers: of the pictures in it; None for the only one.
        pixels: what they must be.
        is_due: whether all must be decoded.
    """
    problems, num_rejects, num_compared = [], 0, 0
    for number in numbers:
        try:
            decoded = preprocess.decode_image(data, wanted, number)
        except Reject as reject:
            num_rejects += 1
            if is_due:
                problems.append(f"picture {number} of a whole file is rejected: {reject}")
            continue
        if (decoded.height, decoded.width) != (wanted.height, wanted.width):
            continue  # and resized, which nothing else does so
        found = np.frombuffer(decoded.pixels, wanted.dtype).reshape(wanted.image_shape)
        try:
            expected = pixels(number)
        except Exception:  # whatever another decoder raises, it refuses
            if is_due:
                raise
            continue
        if expected is None:
            continue
        expected = expected.reshape(*expected.shape[:2], -1).astype(np.float64)
        if expected.shape == found.shape:
            num_compared += 1
            worst = np.abs(found - expected).max()
            if worst > 0.501:
                problems.append(f"picture {number} differs by {worst}")
    said = "rejected" if num_rejects else "compared" if num_compared else "decoded by nothing else"
    return f"{'whole' if is_due else 'damaged or refused'}, {said}", problems


def _noise(rng: random.Random, shape: tuple[int, ...], low: int, high: int) -> np.ndarray:
    return np.random.default_rng(rng.getrandbits(32)).integers(low, high, shape)


def _picture(rng: random.Random, mode: str, height: int, width: int) -> Image.Image:
    noise = _noise(rng, (height, width, 4), 0, 256)
    smooth = np.add.outer(np.arange(height), np.arange(width))[..., None] * 3 % 256
    values = (noise if rng.random() < 0.5 else np.repeat(smooth, 4, -1)).astype(np.uint8)
    rgba = Image.fromarray(values)
    if rng.random() < 0.8:
        rgba.putalpha(255)
    if mode in ("I", "I;16", "F"):
        return Image.fromarray(values[..., 0].astype(np.uint16) * 200).convert(mode)
    if mode == "P":
        image = Image.fromarray(values[..., 0]).convert("P")
        image.putpalette(rng.randbytes(768))
        return image
    if mode == "LA":
        return Image.merge("LA", (rgba.getchannel("R"), rgba.getchannel("A")))
    if mode == "LAB":
        return Image.merge("LAB", rgba.split()[:3])
    return rgba.convert("RGB").convert(mode) if mode != "RGBA" else rgba


def _has_alpha(image: Image.Image) -> bool:
    return image.mode in _MODES_WITH_ALPHA and image.getchannel("A").getextrema() != (255, 255)


def _as_rgb(image: Image.Image) -> np.ndarray:
    """Returns uint8 [height, width, 3], without Pillow's conversions."""
    values = np.asarray(image)
    if image.mode == "1":
        values = values.astype(np.uint8) * 255
    if image.mode == "P":
        return np.asarray(image.getpalette(), np.uint8).reshape(-1, 3)[values]
    if image.mode == "LA":
        values = values[..., 0]
    return values[..., :3] if values.ndim == 3 else np.repeat(values[..., None], 3, -1)


def _with_channels(rgb: np.ndarray, channels: int) -> np.ndarray:
    if channels == 3:
        return rgb
    # ITU-R 601-2 luma in the whole numbers of Pillow's documentation of `convert`.
    return rgb.astype(np.int64) @ np.array([19595, 38470, 7471]) + 0x8000 >> 16


@functools.cache
def _tensorflow() -> object | None:
    try:
        import tensorflow
    except ImportError:
        return None
    tensorflow.config.set_visible_devices([], "GPU")
    return tensorflow


def _decode_elsewhere(data: bytes, file_format: str) -> np.ndarray | None:
    """Returns uint8 [height, width, 3] as TensorFlow decodes it, if it does."""
    tf = _tensorflow()
    if tf is None or file_format not in ("JPEG", "PNG"):
        return None
    try:
        if file_format == "JPEG":
            return tf.io.decode_jpeg(data, channels=3, dct_method="INTEGER_ACCURATE").numpy()
        values = tf.io.decode_png(data).numpy()
    except tf.errors.OpError:
        return None
    if values.shape[-1] in (2, 4):
        values = values[..., :-1]
    return np.repeat(values, 3, -1) if values.shape[-1] == 1 else values
