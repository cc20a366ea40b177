"""Decides which pictures are accepted; Pillow reads them, and tifffile the TIFFs that it does not.

Of what follows the first picture of a JPEG, such as a gain map or a short video, nothing is read.
"""

from __future__ import annotations

import io
import logging
from typing import Any, NamedTuple

import numpy as np
from PIL import Image, ImageOps, TiffImagePlugin

from tfrecord_io.decoding.rejects import START_BYTES, Reject, check_size, reason_of, what_is

# Pillow knows many more, but each is attack surface.
_FORMATS = ("JPEG", "PNG", "BMP", "GIF", "WEBP", "PPM", "TIFF", "JPEG2000")

_TIFF_STARTS = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")

# Tags of TIFF 6.0. A photometric interpretation of 0 stands for grey in which zero is white, and a
# sample format of 1 for unsigned integers.
_BITS, _PHOTOMETRIC, _DESCRIPTION, _ORIENTATION, _PLANES = 258, 262, 270, 274, 284
_SAMPLE_FORMAT = 339

# The photometric interpretations that tifffile's pages may have.
_COLOURS = ("MINISWHITE", "MINISBLACK", "RGB")

# How the descriptions begin of files that may have several planes and one directory.
_STACKS = ("ImageJ=", '{"shape"', "<?xml", "<OME")


class Picture(NamedTuple):
    """A picture and facts about its file, see `DecodedImage`; a pixel's height over its width."""

    image: Image.Image
    mode: str
    file_format: str
    quantization: int = 0
    pixel_aspect: float = 1.0


def read_picture(data: bytes) -> Picture:
    """Reads a file that holds one picture, and turns the picture upright.

    Raises:
        Reject: if it is of no accepted format, or holds several pictures. Damaged files may raise
            any other exception.
    """
    try:
        image = Image.open(io.BytesIO(data), formats=_FORMATS)
    except (Image.UnidentifiedImageError, KeyError):
        if data.startswith(_TIFF_STARTS):
            return _by_tifffile(data)
        # No byte is quoted: a link may lead to a secret.
        kind = what_is("", data[:START_BYTES])
        for name in () if kind else _FORMATS:
            plugin, accepts = Image.OPEN[name]
            if accepts and accepts(data[:16]):
                try:
                    plugin(io.BytesIO(data), "")
                except Exception as error:
                    raise Reject("undecodable", f"{name}: {reason_of(error)}") from None
        found = f"{len(data):,} bytes, {kind or 'no known format'}"
        raise Reject("not_an_image", found) from None
    except Image.DecompressionBombError as error:
        raise Reject("too_many_pixels", str(error)) from None
    with image:
        check_size(image.width, image.height)
        file_format = (image.format or "").replace("MPO", "JPEG")
        if file_format != "JPEG" and (num_frames := getattr(image, "n_frames", 1)) > 1:
            raise _several(file_format, num_frames)
        if file_format == "PNG":
            # Pillow decodes what is there, and looks at the checksums only if asked to.
            Image.open(io.BytesIO(data), formats=_FORMATS).verify()
        if isinstance(image, TiffImagePlugin.TiffImageFile):
            if set(image.tag_v2.get(_SAMPLE_FORMAT, (1,))) != {1}:
                raise Reject("unsupported_mode", "TIFF whose samples are not unsigned integers")
            if str(image.tag_v2.get(_DESCRIPTION, "")).startswith(_STACKS):
                with _open_tiff(data) as file:  # Pillow sees the first of its planes
                    if (num_planes := file.series[0].size // max(file.pages.first.size, 1)) > 1:
                        raise _several("TIFF", num_planes)
            if image.tag_v2.get(_PLANES) == 2 and max(image.tag_v2.get(_BITS, (1,))) > 8:
                return _by_tifffile(data)  # Pillow mixes up such channels
        mode, tables = image.mode, getattr(image, "quantization", {})
        image.load()
        # As viewers do. For other formats, looking for them takes longer than this test.
        if image.info.keys() & {"exif", "xmp"} or file_format in ("TIFF", "PNG", "WEBP"):
            ImageOps.exif_transpose(image, in_place=True)
        return Picture(image, mode, file_format, sum(tables.get(0, ())))


def as_channels(image: Image.Image, channels: int, background: str | None) -> Image.Image:
    """Returns a picture in grey (mode L) or RGB, of eight bits; deeper grey is scaled by its range.

    A background such as `black` shows behind transparent pixels. Without one, a picture that has
    such pixels is a reject, unless all are fully transparent: then its alpha says nothing.
    """
    wanted = "L" if channels == 1 else "RGB"
    if image.mode == wanted and "transparency" not in image.info:
        return image
    if image.mode.startswith("I;16") or (image.mode == "I" and image.format == "PPM"):
        # Pillow neither turns white-is-zero round nor scales 12 bits.
        tags = image.tag_v2 if isinstance(image, TiffImagePlugin.TiffImageFile) else {}
        image = _scaled(np.asarray(image), tags.get(_BITS, (16,))[0], tags.get(_PHOTOMETRIC) == 0)
    if image.mode not in ("1", "L", "LA", "P", "PA", "RGB", "RGBA"):
        raise Reject(
            "unsupported_mode",
            f"{image.format} of mode {image.mode}, expected grey or RGB of integers",
        )
    if image.has_transparency_data:
        image = image.convert("RGBA")
        counts = image.getchannel("A").histogram()
        num_pixels = image.width * image.height
        says_something = num_pixels not in (counts[0], counts[255])
        if says_something and background is None:
            raise Reject(
                "transparency",
                f"{1 - counts[255] / num_pixels:.2%} of the pixels are not opaque; --background "
                "black or white shows what is behind them",
            )
        if says_something:
            image = Image.alpha_composite(Image.new("RGBA", image.size, background), image)
        image = image.convert("RGB")
    elif image.mode in ("P", "PA"):
        # Palette colours keep their values if they are converted to RGB first.
        image = image.convert("RGB")
    return image.convert(wanted)


def _scaled(values: np.ndarray, bits: int, is_turned: bool) -> Image.Image:
    levels = np.rint(values * (255 / ((1 << bits) - 1))).astype(np.uint8)
    return Image.fromarray(255 - levels if is_turned else levels)


def _several(file_format: str, num_frames: int) -> Reject:
    found = f"{file_format} with {num_frames:,} pictures; save each as a file of its own"
    return Reject("multiple_frames", found)


def _open_tiff(data: bytes) -> Any:
    try:
        import tifffile
    except ImportError:
        found = "a TIFF that Pillow does not read; pip install tifffile, which does"
        raise Reject("unsupported_mode", found) from None
    logging.getLogger("tifffile").setLevel(logging.CRITICAL + 1)
    return tifffile.TiffFile(io.BytesIO(data))


def _by_tifffile(data: bytes) -> Picture:
    with _open_tiff(data) as file:
        if len(file.pages) != 1:
            raise _several("TIFF", len(file.pages))
        page = file.pages.first
        check_size(page.imagewidth, page.imagelength)
        colours = getattr(page.photometric, "name", str(page.photometric))
        if colours not in _COLOURS or page.dtype not in (np.uint8, np.uint16):
            found = f"TIFF of {colours} and {page.dtype}"
            raise Reject("unsupported_mode", f"{found}, expected grey or RGB of uint8 or uint16")
        if (turned := page.tags.valueof(_ORIENTATION, 1)) != 1:
            raise Reject("unsupported_mode", f"TIFF of orientation {turned}; turn it upright")
        values = page.asarray()
        if page.axes.startswith("S"):  # each channel by itself
            values = np.moveaxis(values, 0, -1)
        image = _scaled(np.squeeze(values), page.bitspersample, colours == "MINISWHITE")
    return Picture(image, image.mode, "TIFF")
