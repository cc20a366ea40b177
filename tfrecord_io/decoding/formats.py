"""Reads picture files with Pillow, without loss: which formats, modes and depths are accepted.

Pillow stops reading once it has the first picture. So it shows missing rows of a PNG in black, and
does not see a second file that was joined to the first; here both are refused.
"""

from __future__ import annotations

import io
import re
import struct
import zlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
from PIL import Image, ImageFile, ImageOps, TiffImagePlugin

from tfrecord_io.decoding import companions, tiff_pages
from tfrecord_io.decoding.rejects import Reject, check_size
from tfrecord_io.decoding.tiff_pages import STRIP_BYTES, STRIPS, TILE_BYTES, TILES

# What may follow a picture: anything so short that no picture fits into it; and of zeros or known
# metadata so many bytes.
_FEW_BYTES, _MAX_TRAILER_BYTES = 16, 64 * 1024

_PADDING = b"\0\r\n\t "

# What to do with a file of several pictures.
_REMEDY = "save each picture as a file of its own"

# How trailers of metadata begin or end: Canon's editing data and Samsung's.
_TRAILER_START, _TRAILER_END = b"CANON OPTIONAL DATA", b"SEFT"

# How the files begin that are decoded.
_PICTURE = re.compile(
    rb"\xff\xd8\xff|\x89PNG\r\n\x1a\n|GIF8[79]a|RIFF....WEBP|II[*+]\0|MM\0[*+]|P[1-6]\s"
    rb"|BM.{12}[\x0c-\x7c]\0\0\0|.{128}DICM",
    re.DOTALL,
)

_JPEG_START, _JPEG_END = b"\xff\xd8\xff", b"\xff\xd9"

# The next marker behind a segment of a JPEG or its coded pixels, among which are the restarts D0 to
# D7 (ISO/IEC 10918-1, B.1.1.2).
_JPEG_MARKER = re.compile(rb"\xff[\xc0-\xcf\xd8-\xfe]")

# PNG, section 11.2.2: samples of a pixel by colour type. Section 8.2: first column and row of each
# pass of an interlaced picture, and the steps to the next ones.
_PNG_SAMPLES = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}
_PNG_PASSES = [(0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2),
               (0, 1, 1, 2)]  # fmt: skip

_PLAIN_NETPBM = re.compile(rb"P[123](?:[\s0-9]+|#[^\r\n]*)*")

# TIFF 6.0, sections 3, 8, 15, 19 and 22. Planar: each channel has strips of its own. A photometric
# interpretation of 0 stands for grey in which zero is white.
_PHOTOMETRIC, _COLOUR_MAP = 262, 320
_WIDTH, _HEIGHT, _BITS, _COMPRESSION, _PLANES, _SAMPLE_FORMAT = 256, 257, 258, 259, 284, 339
_NOT_COMPRESSED, _JPEG, _PLANAR, _UNSIGNED = 1, 7, 2, 1

# The lowest tags, which come first: the kind of the page, or the width of its picture.
_FIRST_TAGS = (254, 255, _WIDTH)


class Picture(NamedTuple):
    """A picture and facts about its file, see `DecodedImage`; a pixel's height over its width."""

    image: Image.Image
    mode: str
    file_format: str
    quantization: int = 0
    pixel_aspect: float = 1.0


def read_picture(data: bytes | io.BytesIO) -> Picture:
    """Reads a file that holds one picture, or a page of TIFF, and turns the picture upright.

    For a page see `tiff_pages.with_first_page`.

    Raises:
        Reject: if there are several pictures, or this one would lose something. Damaged files may
            raise any other exception.
    """
    is_page = not isinstance(data, bytes)
    file = data if is_page else io.BytesIO(data)
    with Image.open(file, formats=("TIFF",) if is_page else tuple(_ENDS)) as image:
        check_size(image.width, image.height)
        content = file.getvalue()
        if not is_page:
            if getattr(image, "is_animated", False) and image.format != "MPO":
                raise Reject("multiple_frames", f"{image.format} with several frames; {_REMEDY}")
            _check_complete(image, content)
        is_tiff = isinstance(image, TiffImagePlugin.TiffImageFile)
        if is_tiff:
            if not is_page and (planes := tiff_pages.planes_named(content)) > 1:
                raise Reject(
                    "multiple_frames",
                    f"a TIFF of {planes:,} images with one directory; save it with a page for each "
                    "image, as in tifffile.imwrite(new, tifffile.imread(old))",
                )
            _check_tiff(image, content)
        mode, file_format = image.mode, (image.format or "").replace("MPO", "JPEG")
        quantization = sum(getattr(image, "quantization", {}).get(0, ()))
        image.load()
        # Pillow takes the upper half of the 16-bit entries; old writers put 0 to 255 into them.
        colours = np.array(image.tag_v2.get(_COLOUR_MAP, ()) if is_tiff else ())
        if image.mode in ("P", "PA") and colours.size and colours.max() < 256:
            image.putpalette(colours.reshape(3, -1).T.astype(np.uint8).tobytes())
        if file_format == "PNG":
            _check_png(image, content)
        # As viewers do. For other formats, looking for them takes longer than this test.
        if image.info.keys() & {"exif", "xmp"} or file_format in ("TIFF", "PNG", "WEBP"):
            ImageOps.exif_transpose(image, in_place=True)
        return Picture(image, mode, file_format, quantization)


def as_channels(image: Image.Image, channels: int, background: str | None) -> Image.Image:
    """Converts any supported mode to grey or RGB of eight bits.

    Transparent pixels are rejected without a background, such as `black`.
    """
    wanted = "L" if channels == 1 else "RGB"
    if "transparency" not in image.info and image.mode == wanted:
        return image
    if image.mode.startswith("I;16") or (image.format == "PPM" and image.mode == "I"):
        # Of deeper files, Pillow neither turns white-is-zero round nor scales 12 bits.
        tags = image.tag_v2 if isinstance(image, TiffImagePlugin.TiffImageFile) else {}
        is_turned, white = tags.get(_PHOTOMETRIC) == 0, (1 << tags.get(_BITS, (16,))[0]) - 1
        values = np.rint(np.asarray(image) * (255 / white)).astype(np.uint8)
        image = Image.fromarray(255 - values if is_turned else values)
    if image.mode not in ("1", "L", "LA", "P", "PA", "RGB", "RGBA"):
        raise Reject("unsupported_mode", f"{image.format} of mode {image.mode}")
    if image.has_transparency_data:
        image = image.convert("RGBA")
        counts = image.getchannel("A").histogram()
        if (share := 1 - counts[255] / sum(counts)) and background is None:
            lowest = next(alpha for alpha, count in enumerate(counts) if count)
            raise Reject(
                "transparency",
                f"{share:.2%} of the pixels are not opaque (alpha down to {lowest} of 255); "
                "--background black or white shows what is behind them",
            )
        if background:
            image = Image.alpha_composite(Image.new("RGBA", image.size, background), image)
    elif image.mode in ("P", "PA"):
        # Palette colours keep their values if they are converted to RGB first.
        image = image.convert("RGB")
    return image.convert(wanted)


def _check_complete(image: ImageFile.ImageFile, data: bytes) -> None:
    """Refuses a file with something behind its first picture, zeros and known metadata aside."""
    # A fast path: looking for the end of a JPEG takes longer than this test.
    if image.format == "JPEG" and data.endswith(_JPEG_END) and not data.rfind(_JPEG_START):
        return
    is_jpeg = image.format in ("JPEG", "MPO")
    end = _ENDS["JPEG" if is_jpeg else image.format or ""](image, data)
    rest = data[end:]
    if len(rest) <= _FEW_BYTES or (is_jpeg and companions.is_primary(image, data, rest)):
        return
    found = rest.lstrip(_PADDING)
    is_known = not found or found.startswith(_TRAILER_START) or found.endswith(_TRAILER_END)
    if is_known and len(rest) <= _MAX_TRAILER_BYTES:
        return
    if starts_picture(rest):
        remedy = "exiftool -b -MPImage2 writes the second one" if is_jpeg else _REMEDY
        raise Reject("multiple_frames", f"{image.format}, followed by another file; {remedy}")
    found = f"{len(rest):,} bytes follow the picture of the {image.format}"
    raise Reject("trailing_data", f"{found}; save it again, as with magick old.png new.png")


def starts_picture(rest: bytes) -> bool:
    """Tells whether what follows a picture begins like another one, zeros and spaces aside."""
    return bool(_PICTURE.match(rest.lstrip(_PADDING)) or _PICTURE.match(rest))


def _check_png(image: ImageFile.ImageFile, data: bytes) -> None:
    """Refuses a loaded PNG whose pixels do not fit their checksums, or end before the last row.

    Pillow does not look at these checksums, nor at that of the compressed stream.
    """
    parts = []
    for name, start, end in _png_chunks(data):
        if name == b"IDAT":
            if len(data) < end + 4:
                raise Reject("truncated", "the PNG ends within its pixels")
            parts.append(data[start:end])
            if zlib.crc32(data[start - 4 : end]) != int.from_bytes(data[end : end + 4], "big"):
                raise Reject("undecodable", "the PNG's pixels do not fit their checksum")
    width, height, bits, colour_type, _, _, interlaced = struct.unpack_from(">IIBBBBB", data, 16)
    # A fast path: rows that are missing are zeros, and the last one is among them.
    if not interlaced and any(image.crop((0, height - 1, width, height)).tobytes()):
        return
    expected = 0
    for left, top, columns, rows in _PNG_PASSES if interlaced else [(0, 0, 1, 1)]:
        if row_bits := len(range(left, width, columns)) * bits * _PNG_SAMPLES[colour_type]:
            # The first byte of a row names a filter.
            expected += (1 + -(-row_bits // 8)) * len(range(top, height, rows))
    found = len(zlib.decompressobj().decompress(b"".join(parts), expected))
    if found < expected:
        raise Reject("truncated", f"the PNG's pixels have {found:,} of {expected:,} bytes")


def _check_tiff(image: TiffImagePlugin.TiffImageFile, data: bytes) -> None:
    """Refuses a page of TIFF with signed samples, or with less in its strips than its pixels.

    Pillow takes signed samples for unsigned ones, missing strips for black, and reads beyond short
    ones.
    """
    tags = image.tag_v2
    if (kinds := set(tags.get(_SAMPLE_FORMAT, ()))) - {_UNSIGNED}:
        found = ", ".join(map(str, sorted(kinds)))
        raise Reject("unsupported_mode", f"TIFF of sample format {found}, not unsigned integers")
    places = tags.get(STRIPS, tags.get(TILES, ()))
    lengths = tags.get(STRIP_BYTES, tags.get(TILE_BYTES, ()))
    compression = tags.get(_COMPRESSION, _NOT_COMPRESSED)
    if compression == _JPEG:
        for place, length in zip(places, lengths, strict=False):
            if not data[place : place + length].rstrip(b"\0").endswith(_JPEG_END):
                raise Reject("truncated", "the TIFF's JPEG is cut off")
    if compression != _NOT_COMPRESSED or not any(lengths):  # some writers leave the lengths out
        return
    bits = tags.get(_BITS, (1,))
    # As stored: Pillow's sides are those of the picture turned upright.
    width, height = tags[_WIDTH], tags[_HEIGHT]
    planes = bits if tags.get(_PLANES) == _PLANAR else (sum(bits),)
    expected = height * sum(-(-width * n // 8) for n in planes)
    if (num_bytes := sum(lengths[: len(places)])) < expected:
        raise Reject("truncated", f"the TIFF's pixels have {num_bytes:,} of {expected:,} bytes")


def _png_chunks(data: bytes) -> Iterator[tuple[bytes, int, int]]:
    """Yields the name of each chunk of a PNG, and where its content begins and ends."""
    place = 8  # behind the signature
    while place + 8 <= len(data):
        length, name = struct.unpack_from(">I4s", data, place)
        yield name, place + 8, place + 8 + length
        place += 12 + length


def jpeg_markers(data: bytes) -> Iterator[tuple[int, int]]:
    """Yields each marker of a JPEG or JPEG-LS after its first, such as 0xDA, and its place."""
    place = 2
    while following := _JPEG_MARKER.search(data, place):
        place = following.start()
        yield data[place + 1], place
        # A segment with its length, or behind a scan also the coded pixels.
        place += 2 + int.from_bytes(data[place + 2 : place + 4], "big")


def _end_of_jpeg(image: Any, data: bytes) -> int:
    for marker, place in jpeg_markers(data):
        if marker == _JPEG_END[1]:
            return place + 2
        if marker == _JPEG_START[1]:  # another picture begins
            return place
    return len(data)


def _end_of_png(image: Any, data: bytes) -> int:
    return next((end + 4 for name, _, end in _png_chunks(data) if name == b"IEND"), len(data))


def _end_of_bmp(image: Any, data: bytes) -> int:
    codec, (_, _, _, height), start, arguments = image.tile[0]
    said = int.from_bytes(data[2:6], "little")  # which some writers leave out
    if codec == "bmp_rle":
        return said or len(data)
    # A profile of colours may follow the pixels.
    return max(start + arguments[1] * height, said if said <= len(data) else 0)


def _end_of_netpbm(image: Any, data: bytes) -> int:
    if plain := _PLAIN_NETPBM.match(data):
        return plain.end()
    bits = {"1": 1, "I": 16}.get(image.mode, 8) * len(image.getbands())
    _, (_, _, width, height), start, _ = image.tile[0]
    return start + height * -(-width * bits // 8)


def _end_of_tiff(image: Any, data: bytes) -> int:
    """Returns where another picture begins, or the end of the file."""
    end = tiff_pages.end_of_pages(io.BytesIO(data))
    if starts_picture(data[end:]):
        return end
    order, place = ("<" if data.startswith(b"II") else ">"), 0
    while (place := data.find(data[:4], place + 4)) > 0:
        directory = place + struct.unpack_from(f"{order}I", data.ljust(place + 8), place + 4)[0]
        first_tag = struct.unpack_from(f"{order}H", data[directory + 2 : directory + 4].ljust(2))[0]
        # EXIF within a JPEG looks the same, but has no picture.
        if first_tag in _FIRST_TAGS and data[place - 6 : place] != b"Exif\0\0":
            return place
    return len(data)


# The formats that are decoded, and where a picture ends. Pillow knows many more, but each is attack
# surface. JPEG 2000 is left out because Pillow silently reduces its 16-bit colour to 8 bits.
_ENDS: Mapping[str, Callable[[Any, bytes], int]] = {
    "JPEG": _end_of_jpeg,
    "PNG": _end_of_png,
    "BMP": _end_of_bmp,
    "GIF": lambda image, data: image.fp.tell(),  # where it looked for a second frame
    "WEBP": lambda image, data: 8 + (int.from_bytes(data[4:8], "little") + 1) // 2 * 2,
    "PPM": _end_of_netpbm,
    "TIFF": _end_of_tiff,
}
