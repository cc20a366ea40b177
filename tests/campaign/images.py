"""Image files of every format and mode that Pillow writes, whole and damaged."""

from __future__ import annotations

import functools
import io
import random
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image

from campaign import mutations
from tfrecord_io.decoding import preprocess
from tfrecord_io.rejects import Reject

_TIFF = ("raw", "tiff_lzw", "tiff_adobe_deflate", "packbits")
#: Format, modes in which nothing is lost, and settings to choose from.
_EXACT: tuple[tuple[str, tuple[str, ...], tuple[dict[str, object], ...]], ...] = (
    ("PNG", ("1", "L", "LA", "P", "RGB", "RGBA"), ({}, {"optimize": True}, {"compress_level": 0})),
    ("BMP", ("1", "L", "P", "RGB"), ({},)),
    ("TIFF", ("1", "L", "LA", "P", "RGB", "RGBA"), tuple({"compression": c} for c in _TIFF)),
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


def try_case(rng: random.Random, folder: Path) -> tuple[str, list[str], str]:
    """Makes one image file and has it decoded; see `archives.try_case`."""
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
    file = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        image.save(file, file_format, **settings)
    data = file.getvalue()
    done = []
    for _ in range(rng.choice((0, 0, 1, 1, 2))):
        way = rng.choice(mutations.ANY)
        data = bytes(way(rng, bytearray(data))) or b"\0"
        done.append(way.__name__)
    what = f"{file_format} {mode} {settings or ''} {', '.join(done) or 'whole'}"
    if turn > 4:
        height, width = width, height
    wanted = preprocess.Preprocessing(height=height, width=width, channels=rng.choice((1, 3, 3)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            decoded = preprocess.decode_image(data, wanted)
        except Reject as reject:
            problems = []
            if not done and group is not _REFUSED and not _has_alpha(image):
                problems = [f"a whole image is rejected: {reject}"]
            return f"rejected: {reject.reason}", problems, what
    pixels = np.frombuffer(decoded.pixels, np.uint8).reshape(wanted.image_shape)
    if not done and group is _REFUSED:
        return "decoded", ["decoded, though nothing can do so faithfully"], what
    if not done and group is _EXACT:
        truth = _TURNS[turn](_as_rgb(image))
        problems = _compare(pixels, truth, "what was saved")
        return "decoded", problems, what
    if (decoded.height, decoded.width) != (height, width):
        return "decoded, of another size", [], what  # and resized, which no other decoder does so
    other = _decode_elsewhere(data, file_format)
    if other is None and file_format == "PNG":
        # All its parts have checksums, so what is decoded is what was saved.
        return "decoded by nothing else", _compare(pixels, _TURNS[turn](_as_rgb(image)), "it"), what
    if other is None:
        return "decoded by nothing else", [], what
    return "decoded twice", _compare(pixels, _TURNS[turn](other), "another decoder", turn), what


def _picture(rng: random.Random, mode: str, height: int, width: int) -> Image.Image:
    noise = np.random.default_rng(rng.getrandbits(32)).integers(0, 256, (height, width, 4))
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


def _compare(pixels: np.ndarray, rgb: np.ndarray, name: str, turn: int = 1) -> list[str]:
    if pixels.shape[-1] == 1:
        # ITU-R 601-2 luma in the whole numbers of Pillow's documentation of `convert`.
        weighted = rgb.astype(np.int64) @ np.array([19595, 38470, 7471]) + 0x8000 >> 16
        rgb = weighted[..., None]
    if pixels.shape != rgb.shape:
        return []
    worst = int(np.abs(pixels.astype(int) - rgb).max())
    return [f"differs by {worst} from {name}"] if worst else []


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
