"""Makes tiny image files, and trees of them as folders, zips and tars."""

import io
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image


def grey_pixels(seed: int = 0, height: int = 20, width: int = 28) -> np.ndarray:
    """Returns uint8 [height, width]: a slope with some noise, another one for each seed."""
    noise = np.random.default_rng(seed).integers(0, 60, (height, width))
    slope = np.add.outer(np.arange(height), np.arange(width)) * (2 + seed % 3)
    return ((slope + noise) % 256).astype(np.uint8)


def rgb_pixels(seed: int = 0, height: int = 20, width: int = 28) -> np.ndarray:
    """Returns uint8 [height, width, 3]."""
    return np.stack([grey_pixels(3 * seed + i, height, width) for i in range(3)], axis=-1)


def encoded(image: Image.Image | np.ndarray, file_format: str = "PNG", **settings: object) -> bytes:
    """Returns an image as a file of a format that Pillow writes."""
    if isinstance(image, np.ndarray):
        image = Image.fromarray(image)
    file = io.BytesIO()
    image.save(file, file_format, **settings)
    return file.getvalue()


def jpeg(seed: int = 0, height: int = 20, width: int = 28) -> bytes:
    return encoded(grey_pixels(seed, height, width), "JPEG")


def png(seed: int = 0, height: int = 20, width: int = 28) -> bytes:
    return encoded(grey_pixels(seed, height, width), "PNG")


def png_of_rows(
    width: int,
    height: int,
    rows: Iterable[bytes],
    *,
    bits: int = 8,
    colour_type: int = 0,
) -> bytes:
    """Returns a PNG with right checksums, whatever it says and its rows of samples are."""

    def chunk(name: bytes, content: bytes) -> bytes:
        checksum = zlib.crc32(name + content)
        return struct.pack(">I", len(content)) + name + content + struct.pack(">I", checksum)

    header = struct.pack(">IIBBBBB", width, height, bits, colour_type, 0, 0, 0)
    stream = zlib.compress(b"".join(b"\0" + row for row in rows))  # each behind its filter
    middle = len(stream) // 2
    parts = (b"IDAT", stream[:middle]), (b"IDAT", stream[middle:])
    chunks = (b"IHDR", header), *parts, (b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunk(*part) for part in chunks)


def scan_tree(
    per_class: Mapping[str, int], classes: Iterable[str] = ("CNV", "DME", "DRUSEN", "NORMAL")
) -> dict[str, bytes]:
    """Returns files in the shape of the Kermany tree, every one another picture.

    `per_class` has the number of images of each class by split.
    """
    names = [
        f"{split}/{label}/{label}-{100 + number // 2}-{number}.jpeg"
        for split, count in per_class.items()
        for label in classes
        for number in range(count)
    ]
    return {name: jpeg(seed) for seed, name in enumerate(names)}


def under(folder: str, files: Mapping[str, bytes]) -> dict[str, bytes]:
    """Returns the same files below a folder."""
    return {f"{folder}/{name}": content for name, content in files.items()}


def kermany_archive(files: Mapping[str, bytes]) -> dict[str, bytes]:
    """Returns a tree as the real archive holds it: twice, with ghosts and `.DS_Store` between."""
    ghosts = {
        f"oct2017/__MACOSX/OCT2017 /{Path(name).parent}/._{Path(name).name}": b"\0\5\x16\7ghost"
        for name in files
        if not name.startswith("test/")
    }
    folders = {str(Path(name).parent.parent) for name in files}
    stores = {f"OCT2017 /{folder}/.DS_Store": b"\0\0\0\1Bud1" for folder in sorted(folders)}
    return under("OCT2017 ", files) | stores | under("oct2017/OCT2017 ", files) | ghosts


def write_tree(directory: Path, files: Mapping[str, bytes]) -> Path:
    """Writes files below a folder; returns the folder."""
    for name, content in files.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return directory


def write_zip(
    path: Path,
    files: Mapping[str, bytes] | Iterable[tuple[str, bytes]],
    compression: int = zipfile.ZIP_STORED,
) -> Path:
    """Writes a zip; a list of pairs may hold a name twice."""
    pairs = files.items() if isinstance(files, Mapping) else files
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, content in pairs:
            info = zipfile.ZipInfo(name, date_time=(2017, 7, 14, 2, 40, 0))
            archive.writestr(info, content, compression)
    return path


def pack(path: Path, files: Mapping[str, bytes]) -> Path:
    """Writes files as the name says: `.zip`, `deflated.zip`, or a folder."""
    if path.suffix == ".zip":
        is_deflated = path.name.endswith("deflated.zip")
        return write_zip(path, files, zipfile.ZIP_DEFLATED if is_deflated else zipfile.ZIP_STORED)
    return write_tree(path, files)


def scans_of(make: Callable[[], Mapping[str, bytes]], name: str = "scans") -> Any:
    """Returns a fixture: files that a module's tests read, in a folder or archive of that name."""

    @pytest.fixture(scope="module")
    def scans(tmp_path_factory: pytest.TempPathFactory) -> Path:
        return pack(tmp_path_factory.mktemp("scans") / name, make())

    return scans
