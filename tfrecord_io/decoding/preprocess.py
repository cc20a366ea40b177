"""Decodes and resizes an image file, in the same way for the build and for prediction."""

from __future__ import annotations

import dataclasses
import io
import math
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import PIL
from PIL import Image, features

from tfrecord_io.decoding import dicom_frames, formats, tiff_pages
from tfrecord_io.decoding.dicom_levels import FRAME_RANGE, Physical
from tfrecord_io.decoding.dicom_tags import MONOCHROME, SHARE, codec_versions, is_dicom
from tfrecord_io.rejects import Reject, is_of_content

if TYPE_CHECKING:
    from pydicom import Dataset

#: Pillow's filters by the value of --resize. All of them antialias when they reduce a picture.
RESIZE_FILTERS: Mapping[str, Image.Resampling] = {
    "bilinear": Image.Resampling.BILINEAR,
    "bicubic": Image.Resampling.BICUBIC,
    "lanczos": Image.Resampling.LANCZOS,
    "box": Image.Resampling.BOX,
}

#: Types of stored pixels.
DTYPES = ("uint8", "uint16")

#: What may be behind transparent pixels.
BACKGROUNDS = ("black", "white")

#: What becomes of a picture of another shape than the stored one, and what it is then called.
FITS: Mapping[str, str] = {"stretch": "stretched", "pad": "padded"}

# Options that were added later, with the value that a manifest means which does not have them.
_NEWER: Mapping[str, Any] = {"dtype": "uint8", "fit": "stretch"} | dict.fromkeys(
    ("window", "no_window", "physical", "background")
)

_FRAME_NAME = re.compile(r"(?P<path>.*)#frame-(?P<frame>[1-9]\d*)", re.DOTALL)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Preprocessing:
    """How a file becomes pixels.

    Attributes:
        height: height of the stored image in pixels.
        width: width of the stored image in pixels.
        channels: 1 (grey; colour becomes ITU-R 601-2 luma) or 3 (RGB; grey is repeated).
        resize: name of a filter in `RESIZE_FILTERS`.
        dtype: one of `DTYPES`. uint16 keeps the depth of 16-bit grey files; the levels of eight-bit
            files are spread over its range (times 257).
        window: center and width of the grey levels that become the 256 of uint8, for DICOM files;
            by default those that each file names.
        no_window: what becomes of DICOM files that name none, see `dicom_frames.read_frame`. A
            dataset without such files, or of an older release, says nothing of it.
        physical: the formula of the values of uint16, the same for all files; None if the dataset
            has no DICOM files that need one, or an older release made it.
        background: what is behind transparent pixels, one of `BACKGROUNDS`; None to reject them.
        fit: `stretch` changes a picture's shape to the stored one; `pad` scales both sides by one
            factor, to the nearest pixel, centers the picture, and fills the rest with black.

    Raises:
        ValueError: if a value is out of range.
    """

    height: int = 224
    width: int = 224
    channels: int = 1
    resize: str = "bilinear"
    dtype: str = "uint8"
    window: tuple[float, float] | None = None
    no_window: str | None = FRAME_RANGE
    physical: Physical | None = None
    background: str | None = None
    fit: str = "stretch"

    def __post_init__(self) -> None:
        if self.no_window not in (None, FRAME_RANGE):
            raise ValueError(f"no_window must be {FRAME_RANGE!r}, received {self.no_window!r}")
        if min(self.height, self.width) < 1 or max(self.height, self.width) > 16_384:
            raise ValueError(
                f"image_size must be in 1..16384 pixels a side, received {self.height}x{self.width}"
            )
        if self.channels not in (1, 3):
            raise ValueError(f"channels must be 1 or 3, received {self.channels}")
        if self.resize not in RESIZE_FILTERS:
            raise ValueError(
                f"resize must be one of {', '.join(RESIZE_FILTERS)}, received {self.resize!r}"
            )
        if self.dtype not in DTYPES:
            raise ValueError(f"dtype must be one of {', '.join(DTYPES)}, received {self.dtype!r}")
        if self.background not in (None, *BACKGROUNDS):
            raise ValueError(f"background must be black or white, received {self.background!r}")
        if self.fit not in FITS:
            raise ValueError(f"fit must be one of {', '.join(FITS)}, received {self.fit!r}")
        if self.window and not (self.window[1] >= 1 and math.isfinite(sum(self.window))):
            raise ValueError(
                f"window must be a center and a width of at least 1, received {self.window}"
            )
        if self.window and self.dtype != "uint8":
            raise ValueError(
                f"window is for uint8: a dataset of {self.dtype} keeps the whole range"
            )

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """(height, width, channels)."""
        return self.height, self.width, self.channels

    @property
    def is_windowed(self) -> bool:
        """Whether the grey levels of DICOM files do not depend on a window of theirs."""
        return self.window is not None or self.dtype != "uint8"

    def box(self, width: float, height: float) -> tuple[int, int, int, int]:
        """Returns (left, top, right, bottom) of a picture in the stored image; the rest is padding.

        Ties are rounded as in `PIL.ImageOps.pad`, which gives the same pixels if those of the file
        are square.

        Args:
            width: of the picture, in any unit.
            height: of the picture, in the same unit.
        """
        columns, rows = self.width, self.height
        if self.fit == "pad" and width * rows > height * columns:
            rows = max(round(height / width * columns), 1)
        elif self.fit == "pad":
            columns = max(round(width / height * rows), 1)
        left, top = round((self.width - columns) / 2), round((self.height - rows) / 2)
        return left, top, left + columns, top + rows

    def to_dict(self) -> dict[str, Any]:
        """Returns JSON values by name; those of `_NEWER` only if they differ from these."""
        values = dataclasses.asdict(self)
        return {
            name: value
            for name, value in values.items()
            if name not in _NEWER or value != _NEWER[name]
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Preprocessing:
        """Makes the options from the values that `to_dict` returned; ignores other entries.

        Raises:
            KeyError: if a value is missing.
            ValueError: if a value is out of range.
        """
        values = {**_NEWER, **values}
        try:
            if values["window"]:
                values["window"] = tuple(values["window"])
            if values["physical"]:
                values["physical"] = Physical(**values["physical"])
            return cls(**{field.name: values[field.name] for field in dataclasses.fields(cls)})
        except (TypeError, OverflowError) as error:
            raise ValueError(f"preprocessing of another type than expected: {error}") from None


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
            image, mode, aspect = dicom_frames.read_frame(
                data,
                frame or 0,
                dtype=preprocessing.dtype,
                window=preprocessing.window,
                no_window=preprocessing.no_window,
                physical=preprocessing.physical,
            )
            picture = formats.Picture(image, mode, "DICOM", pixel_aspect=aspect)
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
        if not isinstance(data, bytes) or frame:
            raise Reject(
                "undecodable", f"page {frame} of the TIFF is damaged or of no known kind"
            ) from None
        # The detail quotes no bytes: a link may lead to a secret, and rejects are published.
        raise Reject("not_an_image", f"{len(data):,} bytes of no known format") from None
    except Image.DecompressionBombError as error:
        raise Reject("too_many_pixels", str(error)) from None
    except OSError as error:
        if not is_of_content(error):
            raise
        reason = "truncated" if "truncated" in str(error) else "undecodable"
        raise Reject(reason, str(error)) from None
    except Exception as error:
        if not is_of_content(error):
            raise
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
