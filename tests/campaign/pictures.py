"""Image files of every format that Pillow writes, DICOM files and TIFF files of several pages.

A whole file must give the pixels that were written, by arithmetic of this module. Of a damaged one,
what is decoded must be what another decoder finds in the same bytes, if it finds something.
"""

import io
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pydicom
from dicom_files import dicom_file, in_syntax
from image_files import encoded
from PIL import Image
from tiff_files import NEW_SUBFILE_TYPE, SUBFILE_TYPE, tiff_file

from campaign.case import Case
from campaign.damage import damage
from tfrecord_io.decoding import dicom, preprocess, tiff_pages
from tfrecord_io.decoding.options import DTYPES
from tfrecord_io.decoding.rejects import Reject

_COMPRESSIONS = ("raw", "tiff_lzw", "tiff_adobe_deflate", "packbits")
#: Modes of each format in which nothing is lost, in which some is, and those that are refused,
#: because nothing can turn them faithfully into 8-bit grey or RGB, or the format is not read.
_FORMATS = {
    "PNG": ("1 L LA P RGB RGBA", "", "I I;16"),
    "TIFF": ("1 L LA P RGB RGBA", "L RGB", "CMYK YCbCr LAB I I;16 F"),
    "BMP": ("1 L P RGB", "", ""),
    "GIF": ("L P", "", ""),
    "WEBP": ("RGB RGBA", "RGB", ""),
    "PPM": ("1 L RGB", "", "I"),
    "JPEG": ("", "L RGB", "CMYK"),
    "JPEG2000": ("", "", "L RGB"), "TGA": ("", "", "L RGB"), "PCX": ("", "", "L RGB"),
    "SGI": ("", "", "L RGB"), "ICO": ("", "", "RGBA"), "IM": ("", "", "L"), "DDS": ("", "", "RGB"),
    "PDF": ("", "", "L"), "EPS": ("", "", "L"),
}  # fmt: skip
#: How a format can be saved, without and with loss.
_SETTINGS: dict[tuple[str, str], tuple[dict[str, object], ...]] = {
    ("PNG", "exact"): ({}, {"optimize": True}, {"compress_level": 0}),
    ("TIFF", "exact"): tuple({"compression": c} for c in _COMPRESSIONS),
    ("TIFF", "lossy"): ({"compression": "jpeg"},),
    ("GIF", "exact"): ({}, {"interlace": 1}),
    ("WEBP", "exact"): ({"lossless": True, "exact": True},),
    ("WEBP", "lossy"): ({"quality": 60},),
    ("JPEG", "lossy"): ({}, {"progressive": True}, {"quality": 30}, {"subsampling": 0}),
}
_ORIENTATION = 0x0112
#: Pixels as a viewer shows them, from pixels as they are stored, by EXIF's number.
_TURNS: dict[int, Callable[[np.ndarray], np.ndarray]] = {
    1: lambda a: a, 2: lambda a: a[:, ::-1], 3: lambda a: a[::-1, ::-1], 4: lambda a: a[::-1],
    5: lambda a: a.swapaxes(0, 1), 6: lambda a: np.rot90(a, -1),
    7: lambda a: a[::-1, ::-1].swapaxes(0, 1), 8: lambda a: np.rot90(a),
}  # fmt: skip
#: Transfer syntaxes; among them RLE, JPEG-LS and JPEG 2000.
_UID = "1.2.840.10008.1.2"
_SYNTAXES = ("", ".1", ".2", ".4.80", ".4.90", ".5")
_KINDS = ({}, {}, {}, {NEW_SUBFILE_TYPE: 2}, {NEW_SUBFILE_TYPE: 1}, {NEW_SUBFILE_TYPE: 5},
          {NEW_SUBFILE_TYPE: 4}, {SUBFILE_TYPE: 2}, {SUBFILE_TYPE: 3})  # fmt: skip
_WINDOW = {"center": (0x0028, 0x1050, "DS"), "width": (0x0028, 0x1051, "DS"),
           "slope": (0x0028, 0x1053, "DS"), "intercept": (0x0028, 0x1052, "DS")}  # fmt: skip

#: Returns the pixels of a picture, by its number in the file, or None if nothing is known of them.
Decode = Callable[[Any], np.ndarray | None]


def try_image(case: Case) -> str:
    """Makes one image file and has it decoded."""
    group = case.pick("exact", "exact", "lossy", "refused")
    place = ("exact", "lossy", "refused").index(group)
    file_format = case.pick(*(name for name, modes in _FORMATS.items() if modes[place]))
    mode = case.pick(*_FORMATS[file_format][place].split())
    settings = dict(case.pick(*_SETTINGS.get((file_format, group), ({},))))
    size = case.rng.randrange(1, 40), case.rng.randrange(1, 40)
    image, turn = _picture(case, mode, size), 1
    if file_format in ("JPEG", "PNG", "TIFF", "WEBP") and case.happens(0.3):
        turn = case.rng.randrange(1, 9)
        settings["exif"] = Image.Exif()
        settings["exif"][_ORIENTATION] = turn
    data, done = damage(case.rng, encoded(image, file_format, **settings))
    case.what = f"{file_format} {mode} {settings or ''} {done or 'whole'}"
    height, width = size[::-1] if turn > 4 else size
    wanted = preprocess.Preprocessing(height=height, width=width, channels=case.pick(1, 3, 3))
    is_whole = not done and group == "exact"

    def pixels(_: None) -> np.ndarray | None:
        rgb = None if is_whole else _decode_elsewhere(data, file_format)
        # All parts of a PNG have checksums, so what is decoded is what was saved.
        if rgb is None and (file_format == "PNG" or is_whole):
            rgb = _as_rgb(image)
        return None if rgb is None else _with_channels(_TURNS[turn](rgb), wanted.channels)

    has_alpha = mode in ("LA", "RGBA") and image.getextrema()[-1] != (255, 255)
    is_due = not done and group != "refused" and not has_alpha
    outcome = _compare(case, data, wanted, [None], pixels, is_due=is_due)
    is_wrong = not done and group == "refused" and "rejected" not in outcome
    case.require(not is_wrong, "decoded, though nothing can do so faithfully")
    return outcome


def try_frames(case: Case) -> str:
    """Makes one file of several pictures and has them decoded."""
    return case.pick(_try_dicom, _try_tiff)(case)


def _try_dicom(case: Case) -> str:
    rng, syntax, bits = case.rng, case.pick(*_SYNTAXES), case.pick(8, 8, 10, 12, 16)
    is_signed = bits > 8 and case.happens(0.4)
    photometric = case.pick("MONOCHROME1", "MONOCHROME2", "MONOCHROME2")
    num_frames, span = case.pick(1, 1, 2, 3, 7), (1 << bits) - 1
    # The codecs of JPEG 2000 and JPEG-LS fail to write some that are smaller.
    height, width = (rng.randrange(32 if syntax.startswith(".4") else 1, 48) for _ in range(2))
    lowest = -(1 << bits - 1) if is_signed else 0
    frames = _noise(case, (num_frames, height, width), lowest, lowest + span + 1)
    frames = frames.astype(np.dtype(f"{'i' if is_signed else 'u'}{1 if bits == 8 else 2}"))
    facts = {}
    if case.happens(0.5):
        facts = {"center": rng.randrange(-100, 3000), "width": rng.randrange(1, 4000)}
        if case.happens(0.5):
            facts |= {"slope": case.pick(1, 2, 5), "intercept": rng.randrange(-1024, 1024)}
    elements = {_WINDOW[name]: str(value) for name, value in facts.items()}
    pixels = frames[0] if num_frames == 1 else frames
    data = dicom_file(pixels, elements, photometric=photometric, bits=bits)
    data, done = damage(rng, in_syntax(data, f"{_UID}{syntax}"))
    case.what = f"DICOM {syntax} {bits} bits {num_frames} frames {facts} {done or 'whole'}"
    wanted = preprocess.Preprocessing(height=height, width=width, dtype=case.pick(*DTYPES))
    header = dicom.read_header(data)
    is_right = header is not None and header.num_frames == num_frames
    case.require(done or is_right, f"the header is {header}")

    def truth(number: int) -> np.ndarray:
        stored = frames[number - 1].astype(np.float64)
        low, high = (lowest, lowest + span)
        if wanted.dtype == "uint8" and bits > 8 and not facts:  # the range of the frame's values
            low, high = stored.min(), stored.max()
        shares = (stored - low) / max(high - low, 1e-6)
        if wanted.dtype == "uint8" and facts:
            values = stored * facts.get("slope", 1) + facts.get("intercept", 0)
            # PS3.3, C.11.2.1.2.1
            shares = (values - facts["center"] + 0.5) / max(facts["width"] - 1, 1e-6) + 0.5
            shares = np.clip(shares, 0, 1)
        shares = 1 - shares if photometric == "MONOCHROME1" else shares
        return shares * (255 if wanted.dtype == "uint8" else 65_535 if bits == 8 else span)

    def elsewhere(number: int) -> np.ndarray | None:
        read = pydicom.dcmread(io.BytesIO(data))
        is_plain = read.BitsStored > 8 and read.PhotometricInterpretation == "MONOCHROME2"
        if wanted.dtype == "uint8" or not is_plain:
            return None
        values = pydicom.pixels.pixel_array(io.BytesIO(data), index=max(number, 1) - 1, raw=True)
        least = -(1 << read.BitsStored - 1) if read.PixelRepresentation else 0
        return np.clip(values.astype(int), least, least + (1 << read.BitsStored) - 1) - least

    numbers = [0] if num_frames == 1 else range(1, num_frames + 1)
    known = elsewhere if done else truth
    return f"DICOM {_compare(case, data, wanted, numbers, known, is_due=not done)}"


def _try_tiff(case: Case) -> str:
    height, width = case.rng.randrange(1, 40), case.rng.randrange(1, 40)
    num_pages, dtype = case.pick(2, 2, 3, 7), case.pick(*DTYPES)
    pages = _noise(case, (num_pages, height, width), 0, np.iinfo(dtype).max + 1).astype(dtype)
    tags: list[dict[int, int]] = [{} for _ in pages]
    if case.happens(0.5):
        first, *more = (Image.fromarray(page) for page in pages)
        settings = {"save_all": True, "append_images": more}
        data = encoded(first, "TIFF", compression=case.pick(*_COMPRESSIONS), **settings)
    else:
        tags = [case.pick(*_KINDS) for _ in pages]
        # Pillow does not read a big-endian BigTIFF.
        order, is_big = case.pick(("<", False), (">", False), ("<", True))
        data = tiff_file(pages, dict(enumerate(tags, 1)), order=order, is_big_tiff=is_big)
    data, done = damage(case.rng, data)
    case.what = f"TIFF {dtype} {tags} {done or 'whole'}"
    is_tiff = data.startswith(tiff_pages.SIGNATURES)
    found = tiff_pages.read_pages(io.BytesIO(data), is_whole=True) if is_tiff else []
    is_image = [t.get(NEW_SUBFILE_TYPE, 0) in (0, 2) and t.get(SUBFILE_TYPE) != 2 for t in tags]
    case.require(done or [not kind for kind in found] == is_image, f"the pages are {found}")
    for length in (case.rng.randrange(len(data)), len(data)) if found else ():
        start = tiff_pages.read_pages(io.BytesIO(data[:length]), is_whole=False)
        case.require(start in (None, found), f"the first {length} bytes have the pages {start}")
    wanted = preprocess.Preprocessing(height=height, width=width, dtype=dtype)

    def elsewhere(number: int) -> np.ndarray | None:
        with Image.open(io.BytesIO(data), formats=("TIFF",)) as image:
            image.seek(number - 1)
            # Pixels that are in the header are those of another header. And Pillow turns
            # white-is-zero round in files of eight bits only.
            is_known = image.mode == "L" or (image.mode == "I;16" and image.tag_v2.get(262) != 0)
            is_known &= min(image.tag_v2.get(273, (16,))) >= 16
            if not is_known or image.getexif().get(_ORIENTATION, 1) != 1:
                return None
            values = np.asarray(image).astype(int)
        return values * 257 if image.mode == "L" and dtype == "uint16" else values

    known = elsewhere if done else lambda number: pages[number - 1]
    numbers = range(1, len(found) + 1)
    return f"TIFF {_compare(case, data, wanted, numbers, known, is_due=not done)}"


def _compare(
    case: Case, data: bytes, wanted: preprocess.Preprocessing, numbers: Sequence[int | None],
    pixels: Decode, *, is_due: bool,
) -> str:  # fmt: skip
    """Decodes pictures and compares them with what they must be; returns the outcome.

    Args:
        case: the case.
        data: a file.
        wanted: how it is decoded.
        numbers: of the pictures in it; None for the only one.
        pixels: what they must be.
        is_due: whether all must be decoded.
    """
    num_rejects, num_compared = 0, 0
    for number in numbers:
        try:
            decoded = preprocess.decode_image(data, wanted, number)
        except Reject as reject:
            num_rejects += 1
            case.require(not is_due, f"picture {number} of a whole file is rejected: {reject}")
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
        if expected is not None and expected.shape[:2] == found.shape[:2]:
            num_compared += 1
            worst = np.abs(found - expected.reshape(found.shape).astype(np.float64)).max()
            case.require(worst < 0.502, f"picture {number} differs by {worst}")
    said = "rejected" if num_rejects else "compared" if num_compared else "decoded by nothing else"
    return f"{'whole' if is_due else 'damaged or refused'}, {said}"


def _noise(case: Case, shape: tuple[int, ...], low: int, high: int) -> np.ndarray:
    return np.random.default_rng(case.rng.getrandbits(32)).integers(low, high, shape)


def _picture(case: Case, mode: str, size: tuple[int, int]) -> Image.Image:
    smooth = np.add.outer(*map(np.arange, size))[..., None].repeat(4, -1) * 3 % 256
    values = (_noise(case, (*size, 4), 0, 256) if case.happens(0.5) else smooth).astype(np.uint8)
    if case.happens(0.8):
        values[..., 3] = 255
    rgba = Image.fromarray(values)
    if mode in ("I", "I;16", "F"):
        return Image.fromarray(values[..., 0].astype(np.uint16) * 200).convert(mode)
    if mode == "P":
        image = Image.fromarray(values[..., 0]).convert("P")
        image.putpalette(case.rng.randbytes(768))
        return image
    if mode in ("LA", "LAB"):
        return Image.merge(mode, [rgba.getchannel(c) for c in ("RA" if mode == "LA" else "RGB")])
    return rgba if mode == "RGBA" else rgba.convert("RGB").convert(mode)


def _as_rgb(image: Image.Image) -> np.ndarray:
    """Returns uint8 [height, width, 3], without Pillow's conversions."""
    values = np.asarray(image)
    if image.mode == "P":
        return np.asarray(image.getpalette(), np.uint8).reshape(-1, 3)[values]
    values = values.astype(np.uint8) * (255 if image.mode == "1" else 1)
    values = values[..., 0] if image.mode == "LA" else values
    return values[..., :3] if values.ndim == 3 else values[..., None].repeat(3, -1)


def _with_channels(rgb: np.ndarray, channels: int) -> np.ndarray:
    if channels == 3:
        return rgb
    # ITU-R 601-2 luma in the whole numbers of Pillow's documentation of `convert`.
    return rgb.astype(np.int64) @ np.array([19595, 38470, 7471]) + 0x8000 >> 16


def _decode_elsewhere(data: bytes, file_format: str) -> np.ndarray | None:
    """Returns uint8 [height, width, 3] as TensorFlow decodes it, if it does."""
    if file_format not in ("JPEG", "PNG"):
        return None
    import tensorflow as tf

    try:
        if file_format == "JPEG":
            return tf.io.decode_jpeg(data, channels=3, dct_method="INTEGER_ACCURATE").numpy()
        values = tf.io.decode_png(data).numpy()
    except tf.errors.OpError:
        return None
    values = values[..., :-1] if values.shape[-1] in (2, 4) else values
    return values.repeat(3, -1) if values.shape[-1] == 1 else values
