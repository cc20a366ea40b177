"""Finds the pictures of a file, and makes them pixels, in the same way for build and prediction.

The frames of a DICOM file and the pages of a TIFF file are pictures; both are called frames here.

>>> find_pictures("scan.png", 30_000, b"", open).frames
(None,)
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, BinaryIO, NamedTuple

import PIL
from PIL import Image, features

from tfrecord_io.decoding import dicom, formats, tiff_pages, unread
from tfrecord_io.decoding.dicom import Header, codec_versions, is_dicom, read_header
from tfrecord_io.decoding.options import Preprocessing
from tfrecord_io.decoding.rejects import Reject, is_of_content
from tfrecord_io.decoding.resize import stored_pixels

if TYPE_CHECKING:
    from pydicom import Dataset

#: Endings of names of files that are opened to look for frames, whatever they hold.
TIFF_SUFFIXES = (".tif", ".tiff")

#: Endings of names of files that hold one picture. They are not opened for a listing; the decoder
#: rejects what holds several all the same.
SINGLE_SUFFIXES = (
    ".jpeg", ".jpg", ".png", ".bmp", ".gif", ".webp", ".jp2", ".pgm", ".ppm",
)  # fmt: skip

#: Endings of the names of images.
IMAGE_SUFFIXES = (*SINGLE_SUFFIXES, *TIFF_SUFFIXES, ".dcm", ".dicom")

#: Bytes of the start of a file in which nearly every header ends.
START_BYTES = 16 * 1024


class Pictures(NamedTuple):
    """The pictures of a file: their numbers, see `frame_path`, and what the tags of DICOM say.

    The format is `DICOM`, `TIFF` if there are several, or empty; `ignored` has the kinds of pages
    that are not images, see `tiff_pages.read_pages` and `dicom_kinds`.
    """

    frames: Sequence[int | None] = (None,)
    file_format: str = ""
    header: Header = Header()
    ignored: Sequence[str] = ()


#: What most files hold.
ONE_PICTURE = Pictures()


def find_pictures(
    name: str, size: int, start: bytes, open_file: Callable[[], BinaryIO]
) -> Pictures:
    """Finds the pictures of a file by its content; a damaged one counts as one picture.

    The file is opened if its first `START_BYTES` are not enough.

    Raises:
        ModuleNotFoundError: if it is a DICOM file, and pydicom or a codec is not installed.
    """
    name = name.lower()
    if name.endswith(SINGLE_SUFFIXES):
        return ONE_PICTURE
    if not is_dicom(start):
        is_tiff = start.startswith(tiff_pages.SIGNATURES)
        return _pages(size, start, open_file) if is_tiff else ONE_PICTURE
    if name.endswith(TIFF_SUFFIXES):  # the decoder rejects it, unless it is a TIFF of one page, too
        return ONE_PICTURE
    header = read_header(start)
    if header is None:
        with open_file() as file:
            header = read_header(file.read())
    if header is not None and header.kind:
        return Pictures([], "DICOM", header, [header.kind])
    # A header can claim any number. Each frame takes at least the head of an item, eight bytes.
    most = min(tiff_pages.MAX_PAGES, size // 8)
    if header is None or not 1 <= header.num_frames <= most:
        return Pictures([0], "DICOM")
    frames = [0] if header.num_frames == 1 else range(1, header.num_frames + 1)
    return Pictures(frames, "DICOM", header)


def _pages(size: int, start: bytes, open_file: Callable[[], BinaryIO]) -> Pictures:
    kinds = tiff_pages.read_pages(io.BytesIO(start), is_whole=False)
    if kinds is None:
        with open_file() as file:
            kinds = tiff_pages.read_pages(file, is_whole=True) or []
    frames = [number for number, kind in enumerate(kinds, start=1) if not kind]
    if len(kinds) == 1 or len(kinds) > tiff_pages.MAX_PAGES or not frames:
        return ONE_PICTURE
    with open_file() as file:
        end = file.seek(tiff_pages.end_of_pages(file))
        # The decoder rejects a file of several pages that is not divided into them.
        if end < size and formats.starts_picture(file.read()):
            return ONE_PICTURE
    return Pictures(frames, "TIFF", ignored=[kind for kind in kinds if kind])


def cut_picture(file: BinaryIO, frame: int, *, pages: bool) -> Dataset | io.BytesIO | None:
    """Reads one frame of a file, one of the pages of TIFF if so wished; None if all must be read.

    Raises:
        Reject: if a DICOM file holds other frames than it says.
        IndexError: if a TIFF has fewer pages.
        EOFError: if a page of a TIFF is behind a damaged one.
    """
    is_frame = is_dicom(file.read(START_BYTES))
    file.seek(0)
    if is_frame:
        return dicom.cut_frame(file, frame)
    return tiff_pages.with_first_page(file, frame) if pages else None


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

    Frames of DICOM and pages of TIFF are numbered from 1. The only frame of a DICOM file has 0, and
    the picture of any other file None.
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
        mode: Pillow's name of the original's pixel format, such as `L`; or see `dicom.read_frame`.
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
    data: bytes | io.BytesIO | Dataset, preprocessing: Preprocessing, frame: int | None = None
) -> DecodedImage:
    """Decodes an image file and converts it to the stored size and number of channels.

    Pillow may warn of odd metadata. The data are the whole file, or one frame of it, see
    `cut_picture`; for the frame's number, see `frame_path`.

    Raises:
        Reject: if the file is not an image, is damaged, or cannot be converted without loss of
            information other than by resizing. No other exception is raised for any bytes.
        OSError, MemoryError: if the machine fails, see `rejects.is_of_content`.
        ModuleNotFoundError: if it is a DICOM file, and pydicom or a codec is not installed.
    """
    if not data:
        raise Reject("empty", "the file has no bytes")
    try:
        if isinstance(data, bytes) and frame:
            data = cut_picture(io.BytesIO(data), frame, pages=True) or data
        if isinstance(data, io.BytesIO) or (frame is None and isinstance(data, bytes)):
            picture = formats.read_picture(data)
        else:
            picture = dicom.read_frame(data, frame or 0, preprocessing)
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
    except Reject:
        raise
    except Image.UnidentifiedImageError:
        # The detail quotes no bytes: a link may lead to a secret, and rejects are published.
        if isinstance(data, bytes) and not frame:
            told = unread.what_is("", data[:4096]) or "no known format"
            raise Reject("not_an_image", f"{len(data):,} bytes, {told}") from None
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
        # For damaged bytes, decoders raise almost anything, such as struct.error or SyntaxError.
        # Their messages are left out because some quote bytes of the file.
        raise Reject("undecodable", f"the decoder raised {type(error).__name__}") from None
