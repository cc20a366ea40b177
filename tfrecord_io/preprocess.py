"""From a file's bytes to pixels: the one decode-and-resize of the build and of prediction."""

from __future__ import annotations

import dataclasses
import io
import zlib
from collections.abc import Mapping
from typing import Any, NamedTuple

import PIL
from PIL import Image, ImageFile, ImageOps, TiffImagePlugin, features

from tfrecord_io.printing import printable

#: Pillow's filters by the name of the option. All of them widen with the reduction (antialias).
RESIZE_FILTERS: Mapping[str, Image.Resampling] = {
    "bilinear": Image.Resampling.BILINEAR,
    "bicubic": Image.Resampling.BICUBIC,
    "lanczos": Image.Resampling.LANCZOS,
    "box": Image.Resampling.BOX,
}

#: File formats that are decoded; Pillow guesses among many more, and each is attack surface.
#: JPEG 2000 is left out because Pillow cuts its 16-bit colour to 8 bits and does not tell.
FORMATS = ("JPEG", "PNG", "BMP", "TIFF", "GIF", "WEBP", "PPM")

#: A picture with more pixels than this is taken for a decompression bomb (a third of a gigabyte
#: in RGB). It is Pillow's own `MAX_IMAGE_PIXELS`, held here so that nobody's setting changes it.
MAX_PIXELS = 89_478_485

#: Characters of a reject's detail; what a stranger's file makes a library say can be longer.
MAX_DETAIL_LENGTH = 200

_EXIF_ORIENTATION = 0x0112

_PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"

# TIFF 6.0, section 19: 1 stands for unsigned integers, the default; 2 for signed ones.
_TIFF_SAMPLE_FORMAT = 339


class Reject(Exception):  # noqa: N818 - a verdict on an image, the field's word for it
    """An image that is left out, with its reason.

    Attributes:
        reason: one of a few fixed words, to count by.
        detail: what was found in this file.
    """

    def __init__(self, reason: str, detail: str) -> None:
        detail = printable(detail, MAX_DETAIL_LENGTH)
        super().__init__(f"{reason}: {detail}")
        self.reason = reason
        self.detail = detail

    def __reduce__(self) -> tuple[type, tuple[str, str]]:
        return Reject, (self.reason, self.detail)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Preprocessing:
    """How a file becomes pixels.

    Attributes:
        height: of the stored image, in pixels.
        width: of the stored image, in pixels. The picture is stretched to fit, not cropped.
        channels: 1 (grey; colour becomes ITU-R 601-2 luma) or 3 (RGB; grey is repeated).
        resize: a name in `RESIZE_FILTERS`.

    Raises:
        ValueError: if a value is out of range.
    """

    height: int = 224
    width: int = 224
    channels: int = 1
    resize: str = "bilinear"

    def __post_init__(self) -> None:
        if min(self.height, self.width) < 1 or max(self.height, self.width) > 16_384:
            raise ValueError(
                f"an image side must be in 1..16384 pixels, received {self.height}x{self.width}"
            )
        if self.channels not in (1, 3):
            raise ValueError(f"channels must be 1 or 3, received {self.channels}")
        if self.resize not in RESIZE_FILTERS:
            raise ValueError(
                f"resize must be one of {', '.join(RESIZE_FILTERS)}, received {self.resize!r}"
            )

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """(height, width, channels)."""
        return self.height, self.width, self.channels

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Preprocessing:
        """Restores what `to_dict` returned, as the manifest keeps it; ignores other entries."""
        return cls(**{field.name: values[field.name] for field in dataclasses.fields(cls)})


class DecodedImage(NamedTuple):
    """A decoded, resized picture and what is known of the original.

    Attributes:
        pixels: uint8, row-major [height, width, channels] of the preprocessing.
        width: of the original as it is viewed (after its EXIF rotation), in pixels.
        height: likewise.
        mode: Pillow's name of the original's pixel format, such as `L` or `RGB`.
        file_format: Pillow's name of the file format, such as `JPEG`.
        quantization: sum of the JPEG's luminance quantization table, a measure of its
            quality (larger is coarser); 0 for other formats.
    """

    pixels: bytes
    width: int
    height: int
    mode: str
    file_format: str
    quantization: int


def decoder_versions() -> dict[str, str]:
    """Returns the versions that decide the pixels: the same ones give the same bytes."""
    return {
        "pillow": PIL.__version__,
        "libjpeg": str(features.version("libjpeg_turbo") or features.version("jpg")),
    }


def decode_image(data: bytes, preprocessing: Preprocessing) -> DecodedImage:
    """Decodes an image file and brings it to the stored size and number of channels.

    Args:
        data: the whole file.
        preprocessing: the size, channels and filter wanted.

    Raises:
        Reject: if the file is no image, is damaged, or cannot be converted faithfully. Nothing
            else is raised, whatever the bytes. Pillow may warn, of odd metadata for instance.
    """
    if not data:
        raise Reject("empty", "the file has no bytes")
    try:
        return _decode(data, preprocessing)
    except Reject:
        raise
    except Image.UnidentifiedImageError:
        # Not how it begins: a link in a folder may lead to a secret, and the reject is published.
        raise Reject("not_an_image", f"{len(data):,} bytes of no known format") from None
    except Image.DecompressionBombError as error:
        raise Reject("too_many_pixels", str(error)) from None
    except OSError as error:
        reason = "truncated" if "truncated" in str(error) else "undecodable"
        raise Reject(reason, str(error)) from None
    except Exception as error:
        # Decoders of hostile or damaged bytes raise whatever they like (struct.error,
        # SyntaxError, zlib.error, IndexError and more); one file must not end the job. Their
        # messages are left out: some quote bytes of the file.
        raise Reject("undecodable", f"the decoder raised {type(error).__name__}") from None


def _decode(data: bytes, preprocessing: Preprocessing) -> DecodedImage:
    with Image.open(io.BytesIO(data), formats=FORMATS) as image:
        _check_size(image)
        _check_depth(image)
        _check_sample_format(image)
        if getattr(image, "is_animated", False):
            num_frames = getattr(image, "n_frames", "several")
            raise Reject("multiple_frames", f"{image.format} with {num_frames} frames")
        if image.format == "PNG":
            _check_png(data)
        mode, file_format = image.mode, image.format or ""
        quantization = sum(getattr(image, "quantization", {}).get(0, ()))
        image.load()
        upright = _turn_upright(image)
        converted = _convert(upright, preprocessing.channels)
        resized = converted.resize(
            (preprocessing.width, preprocessing.height), RESIZE_FILTERS[preprocessing.resize]
        )
        return DecodedImage(
            pixels=resized.tobytes(),
            width=upright.width,
            height=upright.height,
            mode=mode,
            file_format=file_format,
            quantization=quantization,
        )


def _check_size(image: Image.Image) -> None:
    if image.width * image.height > MAX_PIXELS:
        raise Reject(
            "too_many_pixels", f"{image.width}x{image.height} pixels, more than {MAX_PIXELS:,}"
        )


def _check_depth(image: ImageFile.ImageFile) -> None:
    """Refuses more than eight bits a sample, also where Pillow would cut them off silently."""
    if image.format == "JPEG":  # which Pillow does not open with more
        return
    # A 16-bit RGB file opens as mode RGB; only the arguments of its tiles' decoder tell: a raw
    # mode such as RGB;16B, or the largest value of a netpbm file.
    arguments = [
        argument
        for tile in image.tile
        for argument in (tile[3] if isinstance(tile[3], tuple) else (tile[3],))
    ]
    raw_modes = [argument for argument in arguments if isinstance(argument, str)]
    if (
        image.mode.startswith(("I", "F"))
        or any(depth in raw for raw in raw_modes for depth in (";16", ";12", ";32"))
        or (image.format == "PPM" and any(isinstance(a, int) and a > 255 for a in arguments))
    ):
        raise Reject("more_than_8_bits", f"{image.format} of mode {raw_modes or image.mode}")


def _check_png(data: bytes) -> None:
    """Compares the checksums of a PNG's pixels, which Pillow reads past.

    Pillow also stops before the checksum of the compressed stream, once it has all rows.
    """
    place = len(_PNG_SIGNATURE)
    while place < len(data):
        length = int.from_bytes(data[place : place + 4], "big")
        name = data[place + 4 : place + 8]
        end = place + 8 + length
        if name == b"IDAT":
            if len(data) < end + 4:
                raise Reject("truncated", "the PNG ends within its pixels")
            found = zlib.crc32(memoryview(data)[place + 4 : end])
            if found != int.from_bytes(data[end : end + 4], "big"):
                raise Reject("undecodable", "the PNG's pixels do not fit their checksum")
        place = end + 4


def _check_sample_format(image: Image.Image) -> None:
    """Refuses signed samples, which Pillow reads as unsigned ones."""
    if not isinstance(image, TiffImagePlugin.TiffImageFile):
        return
    formats = set(image.tag_v2.get(_TIFF_SAMPLE_FORMAT, (1,)))
    if formats != {1}:
        found = ", ".join(map(str, sorted(formats)))
        raise Reject("unsupported_mode", f"TIFF of sample format {found}, not unsigned integers")


def _turn_upright(image: Image.Image) -> Image.Image:
    """Applies the EXIF orientation, which viewers apply too."""
    # Looking for EXIF costs more than the test whether there can be any.
    if "exif" not in image.info and image.format not in ("TIFF", "PNG", "WEBP"):
        return image
    if image.getexif().get(_EXIF_ORIENTATION, 1) == 1:
        return image
    return ImageOps.exif_transpose(image)


def _convert(image: Image.Image, channels: int) -> Image.Image:
    """Brings any faithful 8-bit mode to grey or RGB."""
    wanted = "L" if channels == 1 else "RGB"
    if image.mode == wanted and "transparency" not in image.info:
        return image
    if image.mode not in ("1", "L", "LA", "P", "PA", "RGB", "RGBA"):
        raise Reject("unsupported_mode", f"{image.format} of mode {image.mode}")
    if image.has_transparency_data:
        image = image.convert("RGBA")
        if image.getchannel("A").getextrema() != (255, 255):
            raise Reject("transparency", "some pixels are not opaque")
    elif image.mode in ("P", "PA"):
        # A palette holds colours: by way of RGB they keep their values.
        image = image.convert("RGB")
    return image.convert(wanted)
