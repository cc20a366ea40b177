"""Makes a file pixels, for build and prediction; Pillow, tifffile and pydicom decode it.

Ours are the order of the steps and the names of frames: a DICOM file can have several pictures, any
other file has one. See `formats` and `dicom`.

>>> find_pictures("scan.png", 30_000, b"", open).frames
(None,)
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Sequence
from typing import BinaryIO, NamedTuple

import PIL
from PIL import features

from tfrecord_io.decoding import dicom, formats
from tfrecord_io.decoding.dicom import Frame, Header, codec_versions, read_header
from tfrecord_io.decoding.options import Preprocessing
from tfrecord_io.decoding.rejects import Reject, as_rejects
from tfrecord_io.decoding.resize import stored_pixels

#: Endings of names of files that hold one picture. They are not opened for a listing; the decoder
#: rejects what holds several all the same.
SINGLE_SUFFIXES = (
    ".jpeg", ".jpg", ".png", ".bmp", ".gif", ".webp", ".jp2", ".pgm", ".ppm", ".tif", ".tiff",
)  # fmt: skip

#: Endings of the names of images.
IMAGE_SUFFIXES = (*SINGLE_SUFFIXES, ".dcm", ".dicom")

#: Bytes of the start of a file in which nearly every header ends.
START_BYTES = 16 * 1024

#: Frames of a file that are looked at.
MAX_FRAMES = 16_384


class Pictures(NamedTuple):
    """The pictures of a file: their numbers, see `frame_path`, and what the tags of DICOM say.

    The format is `DICOM` or empty; `ignored` has the kind of a file that is not a picture, see
    `dicom.Header`.
    """

    frames: Sequence[int | None] = (None,)
    file_format: str = ""
    header: Header = Header()
    ignored: Sequence[str] = ()


def find_pictures(
    name: str, size: int, start: bytes, open_file: Callable[[], BinaryIO]
) -> Pictures:
    """Finds the pictures of a file by its content; a damaged one counts as one picture.

    The file is opened if its first `START_BYTES` are not enough.

    Raises:
        ModuleNotFoundError: if it is a DICOM file, and pydicom or a codec is not installed.
    """
    # PS3.10, 7.1
    if name.lower().endswith(SINGLE_SUFFIXES) or start[128:132] != b"DICM":
        return Pictures()
    header = read_header(start)
    if header is None:
        with open_file() as file:
            header = read_header(file.read())
    if header is not None and header.kind:
        return Pictures([], "DICOM", header, [header.kind])
    # A header can claim any number. Each frame takes at least the head of an item, eight bytes.
    if header is None or not 1 <= header.num_frames <= min(MAX_FRAMES, size // 8):
        return Pictures([0], "DICOM")
    frames = [0] if header.num_frames == 1 else range(1, header.num_frames + 1)
    return Pictures(frames, "DICOM", header)


def decoder_versions(*, with_dicom: bool = False) -> dict[str, str]:
    """Returns the library versions that decide the pixels; equal versions give equal bytes.

    With DICOM, it raises a ModuleNotFoundError if one of its codecs is not installed.
    """
    return {
        "pillow": PIL.__version__,
        "libjpeg": str(features.version("libjpeg_turbo") or features.version("jpg")),
        **(codec_versions() if with_dicom else {}),
    }


def frame_path(path: str, frame: int | None) -> str:
    """Returns the name of a frame of a file; the file's own name if it has only one.

    Frames of DICOM are numbered from 1. The only frame of a DICOM file has 0, and the picture of
    any other file None.
    """
    return f"{path}#frame-{frame}" if frame else path


def split_frame_path(name: str) -> tuple[str, int]:
    """Returns the path and the frame of which `frame_path` made a name."""
    path, mark, number = name.rpartition("#frame-")
    return (path, int(number)) if mark and re.fullmatch(r"[1-9]\d*", number) else (name, 0)


class DecodedImage(NamedTuple):
    """A decoded, resized picture with facts about the original.

    Attributes:
        pixels: uint8, row-major [height, width, channels].
        box: where the picture is in them, see `Preprocessing.box`.
        width: of the original in pixels, after its EXIF rotation, as the height is.
        mode: Pillow's name of the original's pixel format, such as `L`; or see `dicom.show`.
        file_format: Pillow's name of the file format, such as `JPEG`; or `DICOM`.
        quantization: sum of the JPEG's luminance quantization table (larger is coarser), or 0.
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


def decode_image(
    data: bytes | Frame, preprocessing: Preprocessing, frame: int | None = None
) -> DecodedImage:
    """Decodes an image file and converts it to the stored size and number of channels.

    Pillow may warn of odd metadata. The data are the whole file, or the result of
    `dicom.read_frame`; for the frame's number, see `frame_path`.

    Raises:
        Reject: if the file is not an image, is damaged, or cannot be converted. No other exception
            is raised for any bytes.
        OSError, MemoryError: if the machine fails, see `rejects.is_of_content`.
        ModuleNotFoundError: if it is a DICOM file, and pydicom or a codec is not installed.
    """
    if not data:
        raise Reject("empty", "the file has no bytes")
    with as_rejects():
        if isinstance(data, bytes) and frame is None:
            picture = formats.read_picture(data)
        else:
            if isinstance(data, bytes):
                data = dicom.read_frame(io.BytesIO(data), frame or 0)
            picture = dicom.show(data, preprocessing.window)
        image = formats.as_channels(picture.image, preprocessing.channels, preprocessing.background)
        box = preprocessing.box(image.width, height := image.height * picture.pixel_aspect)
        return DecodedImage(
            pixels=stored_pixels(image, box, preprocessing),
            box=box,
            width=image.width,
            height=image.height,
            mode=picture.mode,
            file_format=picture.file_format,
            quantization=picture.quantization,
            shape=image.width / height,
        )
