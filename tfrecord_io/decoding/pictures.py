"""Says which pictures a file holds.

Most files hold one. Each frame of a DICOM file and each page of a TIFF file is a picture of its
own; both are called frames, and `preprocess.frame_path` names them. The build and `predict` ask
here, so that both find the same pictures.

>>> find_pictures("scan.png", 30_000, b"", open).frames
(None,)
"""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, BinaryIO, NamedTuple

from tfrecord_io.decoding import dicom_frames, tiff_pages
from tfrecord_io.decoding.complete import starts_picture
from tfrecord_io.decoding.dicom_tags import Header, is_dicom, read_header

if TYPE_CHECKING:
    from pydicom import Dataset

#: Endings of names of files that are opened to look for frames, whatever they hold.
TIFF_SUFFIXES = (".tif", ".tiff")

#: Endings of names of files that hold one picture. They are not opened for a listing; the decoder
#: rejects what holds several all the same.
SINGLE_SUFFIXES = (
    ".jpeg", ".jpg", ".png", ".bmp", ".gif", ".webp", ".jp2", ".pgm", ".ppm",
)  # fmt: skip

#: Bytes of the start of a file in which nearly every header ends.
START_BYTES = 16 * 1024

# A header can claim any number of frames. Each takes at least the head of an item in the file.
_LEAST_FRAME_BYTES = 8


class Pictures(NamedTuple):
    """The pictures of a file.

    Attributes:
        frames: their numbers, see `preprocess.frame_path`.
        file_format: `DICOM`, `TIFF` if there are several, or empty.
        header: what the tags of a DICOM file say.
        ignored: for each page that is not an image, `reduced_page` or `mask_page`.
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
    """Finds the pictures of a file by its content.

    A damaged file counts as one picture; the decoder says what is wrong with it.

    Args:
        name: of the file.
        size: of the file in bytes.
        start: its first `START_BYTES`, or more.
        open_file: opens it, if that is not enough.

    Raises:
        ModuleNotFoundError: if it is a DICOM file, and pydicom or a codec is not installed.
    """
    name = name.lower()
    if name.endswith(SINGLE_SUFFIXES):
        return ONE_PICTURE
    if not is_dicom(start):
        return _pages(size, start, open_file) if tiff_pages.is_tiff(start) else ONE_PICTURE
    if name.endswith(TIFF_SUFFIXES):  # the decoder rejects it, unless it is a TIFF of one page, too
        return ONE_PICTURE
    header = read_header(start)
    if header is None:
        with open_file() as file:
            header = read_header(file.read())
    most = min(tiff_pages.MAX_PAGES, size // _LEAST_FRAME_BYTES)
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
        if end < size and starts_picture(file.read()):
            return ONE_PICTURE
    return Pictures(frames, "TIFF", ignored=[kind for kind in kinds if kind])


def cut_picture(file: BinaryIO, frame: int, *, pages: bool) -> Dataset | io.BytesIO | None:
    """Reads one frame of a file with several, for `preprocess.decode_image`.

    Args:
        file: the file, at its beginning.
        frame: number of the frame, from 1.
        pages: whether to look for pages of TIFF, too.

    Returns:
        the frame; None if all of the file must be read to find it.

    Raises:
        Reject: if a DICOM file holds other frames than it says.
        IndexError: if a TIFF has fewer pages.
        EOFError: if a page of a TIFF is behind a damaged one.
    """
    is_frame = is_dicom(file.read(START_BYTES))
    file.seek(0)
    if is_frame:
        return dicom_frames.cut_frame(file, frame)
    return tiff_pages.with_first_page(file, frame) if pages else None
