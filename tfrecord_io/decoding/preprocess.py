"""Decodes and resizes an image file, in the same way for the build and for prediction."""

from __future__ import annotations

import io
import re
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import PIL
from PIL import Image, features

from tfrecord_io.decoding import dicom_frames, formats, tiff_pages
from tfrecord_io.decoding.dicom_tags import MONOCHROME, SHARE, codec_versions, is_dicom
from tfrecord_io.decoding.options import RESIZE_FILTERS, Preprocessing
from tfrecord_io.rejects import Reject, is_of_content

if TYPE_CHECKING:
    from pydicom import Dataset

_FRAME_NAME = re.compile(r"(?P<path>.*)#frame-(?P<frame>[1-9]\d*)", re.DOTALL)


class DecodedImage(NamedTuple):
    """A decoded, resized picture with facts about the original.

    Attributes:
        pixels: row-major [height, width, channels], little-endian, of the preprocessing's type.
        box: where the picture is in them, see `Preprocessing.box`.
        width: width of the original in pixels, after its EXIF rotation.
        height: height of the original in pixels, after its EXIF rotation.
        mode: Pillow's name of the original's pixel format, such as `L` or `RGB`; of DICOM see
            `dicom_frames.read_frame`.
        file_format: Pillow's name of the file format, such as `JPEG`; or `DICOM`.
        quantization: sum of the JPEG's luminance quantization table, a measure of its
            quality (larger is coarser); 0 for other formats.
        shape: width of the original divided by its height, as it is seen: pixels may not be square.
    """

    pixels: bytes
    box: tuple[int, int, int, int]
    width: int
    height: int
    mode: str
    file_format: str
    quantization: int
    shape: float


def decoder_versions(*, with_dicom: bool = False) -> dict[str, str]:
    """Returns the library versions that decide the pixels; equal versions give equal bytes.

    Args:
        with_dicom: whether there are DICOM files, whose codecs then count too.

    Raises:
        ModuleNotFoundError: if there are, and one of their codecs is not installed.
    """
    return {
        "pillow": PIL.__version__,
        "libjpeg": str(features.version("libjpeg_turbo") or features.version("jpg")),
        **(codec_versions() if with_dicom else {}),
    }


def frame_path(path: str, frame: int | None) -> str:
    """Returns the name of a frame of a file; the file's own name if it has only one.

    Args:
        path: path of the file.
        frame: number of the frame of a DICOM file, or of the page of a TIFF file, from 1; 0 for
            the only frame of a DICOM file; None for all other files.
    """
    return f"{path}#frame-{frame}" if frame else path


def split_frame_path(name: str) -> tuple[str, int]:
    """Returns the path and the frame of which `frame_path` made a name."""
    match = _FRAME_NAME.fullmatch(name)
    return (match["path"], int(match["frame"])) if match else (name, 0)


def decode_image(
    data: bytes | io.BytesIO | Dataset, preprocessing: Preprocessing, frame: int | None = None
) -> DecodedImage:
    """Decodes an image file and converts it to the stored size and number of channels.

    Pillow may emit warnings, for example about odd metadata.

    Args:
        data: the whole file, or one frame of it, see `pictures.cut_picture`.
        preprocessing: the wanted size, channels, filter and type.
        frame: see `frame_path`.

    Raises:
        Reject: if the file is not an image, is damaged, or cannot be converted without loss of
            information other than by resizing. No other exception is raised for any bytes.
        OSError, MemoryError: if the machine fails, see `rejects.is_of_content`.
        ModuleNotFoundError: if it is a DICOM file, and pydicom or a codec is not installed.
    """
    if not data:
        raise Reject("empty", "the file has no bytes")
    try:
        if isinstance(data, bytes) and frame and not is_dicom(data):
            data = tiff_pages.with_first_page(io.BytesIO(data), frame)
        if isinstance(data, io.BytesIO) or (frame is None and isinstance(data, bytes)):
            picture = formats.read_picture(data, preprocessing.dtype)
        else:
            picture = dicom_frames.read_frame(data, frame or 0, preprocessing)
        unit = preprocessing.physical.unit if preprocessing.physical else SHARE
        if unit != SHARE and not picture.mode.startswith(MONOCHROME):
            raise Reject("other_unit", f"a picture without a physical unit, expected {unit}")
        image = formats.as_channels(picture.image, preprocessing.channels, preprocessing.background)
        box = preprocessing.box(image.width, height := image.height * picture.pixel_aspect)
        return DecodedImage(
            pixels=_resized(image, box, preprocessing),
            box=box,
            width=image.width,
            height=image.height,
            mode=picture.mode,
            file_format=picture.file_format,
            quantization=picture.quantization,
            shape=image.width / height,
        )
    except Reject:
        raise
    except Image.UnidentifiedImageError:
        # The detail quotes no bytes: a link may lead to a secret, and rejects are published.
        if isinstance(data, bytes) and not frame:
            raise Reject("not_an_image", f"{len(data):,} bytes of no known format") from None
        found = f"page {frame} of the TIFF is damaged or of no known kind"
        raise Reject("undecodable", found) from None
    except Image.DecompressionBombError as error:
        raise Reject("too_many_pixels", str(error)) from None
    except Exception as error:
        if not is_of_content(error):
            raise
        if isinstance(error, OSError):
            reason = "truncated" if "truncated" in str(error) else "undecodable"
            raise Reject(reason, str(error)) from None
        # For hostile or damaged bytes, decoders raise almost anything (struct.error, SyntaxError,
        # zlib.error, IndexError and more), and one file must not end the job. Their messages are
        # left out because some quote bytes of the file.
        raise Reject("undecodable", f"the decoder raised {type(error).__name__}") from None


def _resized(
    image: Image.Image, box: tuple[int, int, int, int], preprocessing: Preprocessing
) -> bytes:
    """Returns the pixels of a grey, RGB or 16-bit grey picture in the stored size and type."""
    left, top, right, bottom = box

    def fitted(picture: Image.Image) -> Image.Image:
        resize_filter = RESIZE_FILTERS[preprocessing.resize]
        resized = picture.resize((right - left, bottom - top), resize_filter)
        if preprocessing.fit == "stretch":
            return resized
        padded = Image.new(picture.mode, (preprocessing.width, preprocessing.height))
        padded.paste(resized, (left, top))
        return padded

    if preprocessing.dtype == "uint8":
        return fitted(image).tobytes()
    # Each channel by itself, in Pillow's mode I;16: it has no mode of 16-bit colour.
    channels = image.split() if image.mode == "RGB" else (image,)
    planes = [np.asarray(fitted(_deepened(channel))) for channel in channels]
    planes *= preprocessing.channels // len(planes)
    return np.stack(planes, axis=-1).astype("<u2").tobytes()


def _deepened(channel: Image.Image) -> Image.Image:
    """Returns a channel of 8 or 16 bits as one of 16 bits; white becomes 65,535."""
    if channel.mode != "L":
        return channel
    return Image.fromarray(np.multiply(np.asarray(channel), 257, dtype=np.uint16))
