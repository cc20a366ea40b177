"""Reads picture files with Pillow, without loss: which formats, modes and depths are accepted."""

from __future__ import annotations

import io
from typing import NamedTuple

import numpy as np
from PIL import Image, ImageFile, ImageOps, TiffImagePlugin

from tfrecord_io.decoding import complete
from tfrecord_io.rejects import Reject, check_size

#: File formats that are decoded. Pillow knows many more, but each is attack surface. JPEG 2000 is
#: left out because Pillow silently reduces its 16-bit colour to 8 bits.
FORMATS = ("JPEG", "PNG", "BMP", "TIFF", "GIF", "WEBP", "PPM")

_EXIF_ORIENTATION = 0x0112

# TIFF 6.0, section 8: 0 stands for grey in which zero is white.
_TIFF_PHOTOMETRIC = 262


class Picture(NamedTuple):
    """A picture with facts about its file, as `preprocess.DecodedImage` has them.

    The last is the height of a pixel divided by its width.
    """

    image: Image.Image
    mode: str
    file_format: str
    quantization: int = 0
    pixel_aspect: float = 1.0


def read_picture(data: bytes | io.BytesIO, dtype: str) -> Picture:
    """Reads a file that holds one picture, and turns the picture upright.

    Args:
        data: the file; or a page of TIFF, see `tiff_pages.with_first_page`, behind which other
            pages may follow.
        dtype: of the samples that are wanted, uint8 or uint16.

    Raises:
        Reject: if there are several pictures, or this one would lose something. Damaged files may
            raise any other exception.
    """
    is_page = isinstance(data, io.BytesIO)
    file = data if isinstance(data, io.BytesIO) else io.BytesIO(data)
    with Image.open(file, formats=("TIFF",) if is_page else FORMATS) as image:
        check_size(image.width, image.height)
        _check_depth(image, dtype)
        content = file.getvalue()
        if not is_page:
            if getattr(image, "is_animated", False):
                raise Reject("multiple_frames", f"{image.format} with several frames")
            complete.check_complete(image, content)
        if isinstance(image, TiffImagePlugin.TiffImageFile):
            complete.check_tiff(image, content)
        mode, file_format = image.mode, image.format or ""
        quantization = sum(getattr(image, "quantization", {}).get(0, ()))
        image.load()
        if file_format == "PNG":
            complete.check_png(image, content)
        return Picture(_turn_upright(image), mode, file_format, quantization)


def as_channels(image: Image.Image, channels: int, background: str | None) -> Image.Image:
    """Converts any supported mode to grey or RGB, or to 16-bit grey (I;16) if it is that deep.

    Args:
        image: the picture.
        channels: 1 or 3.
        background: what is behind transparent pixels, `black` or `white`; None to reject them.
    """
    wanted = "L" if channels == 1 else "RGB"
    if image.mode == wanted and "transparency" not in image.info:
        return image
    if image.mode.startswith("I") and "transparency" not in image.info:
        # Pillow turns white-is-zero round in files of eight bits only.
        is_turned = isinstance(image, TiffImagePlugin.TiffImageFile) and (
            image.tag_v2.get(_TIFF_PHOTOMETRIC) == 0
        )
        if image.mode == "I;16" and not is_turned:
            return image
        values = np.asarray(image).astype("<u2")
        return Image.fromarray(65_535 - values if is_turned else values)
    if image.mode not in ("1", "L", "LA", "P", "PA", "RGB", "RGBA"):
        raise Reject("unsupported_mode", f"{image.format} of mode {image.mode}")
    if image.has_transparency_data:
        image = image.convert("RGBA")
        counts = image.getchannel("A").histogram()
        share = 1 - counts[255] / sum(counts)
        if share and background is None:
            lowest = next(alpha for alpha, count in enumerate(counts) if count)
            raise Reject(
                "transparency",
                f"{share:.2%} of the pixels are not opaque (alpha down to {lowest} of 255); "
                "--background black or white shows what is behind them",
            )
        if share:
            image = Image.alpha_composite(Image.new("RGBA", image.size, background), image)
    elif image.mode in ("P", "PA"):
        # Palette colours keep their values if they are converted to RGB first.
        image = image.convert("RGB")
    return image.convert(wanted)


def _check_depth(image: ImageFile.ImageFile, dtype: str) -> None:
    """Refuses samples that the type cannot hold, also if Pillow would silently reduce them."""
    if image.format == "JPEG":  # Pillow does not open a JPEG with more than eight bits
        return
    # Pillow opens a 16-bit RGB file as mode RGB. Only the arguments of the tiles' decoder show the
    # depth: a raw mode such as RGB;16B, or the largest value of a netpbm file.
    tiles = (tile[3] if isinstance(tile[3], tuple) else (tile[3],) for tile in image.tile)
    arguments = [argument for tile in tiles for argument in tile]
    raw_modes = [argument for argument in arguments if isinstance(argument, str)]
    is_deep_pnm = image.format == "PPM" and any(isinstance(a, int) and a > 255 for a in arguments)
    is_deep = any(depth in raw for raw in raw_modes for depth in (";16", ";12", ";32"))
    if is_deep or is_deep_pnm or image.mode.startswith(("I", "F")):
        is_grey = image.mode.startswith("I;16") or (image.format == "PPM" and image.mode == "I")
        if dtype == "uint8" or not is_grey:
            hint = "; --dtype uint16 keeps it" if is_grey else ""
            found = f"{image.format} of mode {raw_modes or image.mode}"
            raise Reject("more_than_8_bits", f"{found}{hint}")


def _turn_upright(image: Image.Image) -> Image.Image:
    """Applies the EXIF orientation, as viewers do."""
    # A fast path: looking for EXIF takes longer than this test.
    if "exif" not in image.info and image.format not in ("TIFF", "PNG", "WEBP"):
        return image
    if image.getexif().get(_EXIF_ORIENTATION, 1) == 1:
        return image
    return ImageOps.exif_transpose(image)
