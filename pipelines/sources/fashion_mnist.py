"""Fashion-MNIST: four gzipped IDX files, read from a folder or downloaded.

It has 70,000 grey images of 28 x 28 pixels in 10 classes, 31 MB in all. Each image reaches the
build as a PGM file in memory, so that it takes the same path as images of other sources. Names,
counts, classes, address and MD5 sums are from the dataset's README,
https://github.com/zalandoresearch/fashion-mnist, the file format from
http://yann.lecun.com/exdb/mnist/.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import math
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from pipelines import errors
from pipelines.sources.downloads import raise_disk_error
from pipelines.sources.member import Member
from pipelines.sources.reader import Reader
from pipelines.sources.source import Source
from tfrecord_io.files import atomic_write
from tfrecord_io.stores import remote

LABEL_NAMES = (
    "T-shirt/top",
    "Trouser",
    "Pullover",
    "Dress",
    "Coat",
    "Sandal",
    "Shirt",
    "Sneaker",
    "Bag",
    "Ankle boot",
)
IMAGE_SIZE = (28, 28)
BASE_URL = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/"

# MD5 of each gzip file, as 32 hexadecimal digits.
MD5_SUMS = {
    "train-images-idx3-ubyte.gz": "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
    "train-labels-idx1-ubyte.gz": "25c81989df183df01b3e8a0aad5dffbe",
    "t10k-images-idx3-ubyte.gz": "bef4ecab320f06d8554ea6380940ec79",
    "t10k-labels-idx1-ubyte.gz": "bb300cfdad3c16e7a12a480ee83cd310",
}
# What the file names call each split.
_PREFIXES = {"train": "train", "test": "t10k"}
_MOST_BYTES = 1 << 28  # that are unpacked of a file; the largest published one has 47 MB
_AGAIN = "The file is damaged, or not what its name says; download it again."


@dataclass(frozen=True)
class FashionMnistSource(Source):
    """The four files in a folder that every worker can read.

    They are small, so each worker unpacks the splits that it reads into memory: 47 MB for train, 8
    MB for test.

    Attributes:
        directory: the folder.
    """

    directory: Path

    gives_labels: ClassVar[bool] = True

    def members(self) -> Iterator[Member]:
        """Yields the images, named by their file and their number there; see `Source.members`."""
        for split, prefix in _PREFIXES.items():
            try:
                with errors.clear_read_errors(str(self.directory)):
                    images, labels = read_split(self.directory, prefix)
            except (FileNotFoundError, ValueError) as error:
                raise errors.UserError(str(error)) from None
            for index, (image, label) in enumerate(zip(images, labels.tolist(), strict=True)):
                yield Member(
                    name=f"{prefix}-images-idx3-ubyte/{index:05d}.pgm",
                    size=len(_pgm(image)),
                    offset=index,
                    stored_size=image.size,
                    version=_version(image, label),
                    split=split,
                    label=LABEL_NAMES[label],
                )

    @contextlib.contextmanager
    def open(self) -> Iterator[_Reader]:
        """Opens the files on a worker; see `Source.open`."""
        yield _Reader(self.directory)

    def describe(self) -> dict[str, Any]:
        """Returns the source's entry in the manifest; see `Source.describe`."""
        return {"kind": "fashion_mnist", "name": "fashion-mnist"}


class _Reader(Reader):
    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._splits: dict[str, tuple[NDArray[np.uint8], NDArray[np.uint8]]] = {}

    def read(self, member: Member) -> bytes:
        prefix = member.name.partition("-")[0]  # new splits take images from both files
        if prefix not in self._splits:
            try:
                self._splits[prefix] = read_split(self._directory, prefix)
            except (OSError, ValueError) as error:
                raise errors.BuildError(
                    f"{error}; every worker must be able to read the folder"
                ) from None
        images, labels = self._splits[prefix]
        index = member.offset
        if index >= len(images) or _version(images[index], int(labels[index])) != member.version:
            raise errors.BuildError(
                f"{self._directory} changed since the build began; start again with --overwrite"
            )
        return _pgm(images[index])


def _version(image: NDArray[np.uint8], label: int) -> int:
    """Returns a number that changes when the image or its label does."""
    return zlib.crc32(image.tobytes()) << 8 | label


def _pgm(image: NDArray[np.uint8]) -> bytes:
    """Returns an image uint8 [height, width] as a binary PGM file (netpbm's P5)."""
    height, width = image.shape
    return b"P5 %d %d 255\n" % (width, height) + image.tobytes()


def read_split(directory: Path, prefix: str) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Reads the images and labels of a split, and checks that they belong together.

    Args:
        directory: folder with the files, as published or unpacked and named without `.gz`.
        prefix: what the names of the split's files begin with, `train` or `t10k`.

    Returns:
        images uint8 [num_images, height, width], and labels uint8 [num_images], each an index of
        `LABEL_NAMES`.

    Raises:
        FileNotFoundError: if any of the four files is missing; the message names all of them.
        ValueError: if a file is damaged, or images and labels do not match.
    """
    paths = [directory / name for name in MD5_SUMS]
    paths = [path if path.is_file() else path.with_suffix("") for path in paths]
    if missing := [f"{path.name}.gz" for path in paths if not path.is_file()]:
        raise FileNotFoundError(
            f"{directory}: expected a folder with the four files of Fashion-MNIST under their "
            f"published names, missing: {', '.join(missing)}. They are published at {BASE_URL}"
        )
    images_path, labels_path = (path for path in paths if path.name.startswith(prefix))
    images, labels = read_idx(images_path, 3), read_idx(labels_path, 1)
    highest = int(labels.max(initial=0))
    if len(labels) != len(images) or highest >= len(LABEL_NAMES):
        raise ValueError(
            f"{labels_path}: expected {len(images)} labels from 0 to {len(LABEL_NAMES) - 1}, one "
            f"for each image, got {len(labels)} up to {highest}."
        )
    return images, labels


def read_idx(path: Path, num_dimensions: int) -> NDArray[np.uint8]:
    """Reads an IDX file of unsigned bytes, gzipped or not.

    It begins with two zero bytes, the type (8 for unsigned bytes), the number of dimensions, and
    each dimension as a big-endian uint32. The values follow in row-major order.

    Args:
        path: the file; gzip is recognised by the first two bytes, not by the name.
        num_dimensions: 3 for images, 1 for labels.

    Returns:
        uint8 array of the header's shape: [num_images, height, width] or [num_labels].

    Raises:
        ValueError: if the file is not an IDX file of unsigned bytes in so many dimensions, is too
            short or too long, or is a damaged gzip file.
    """
    with path.open("rb") as raw:
        is_gzip = raw.read(2) == b"\x1f\x8b"
    try:
        with gzip.open(path) if is_gzip else path.open("rb") as file:
            content = file.read(_MOST_BYTES)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise ValueError(f"{path}: expected a whole gzip file, got {error}. {_AGAIN}") from error
    header = struct.Struct(f">4B{num_dimensions}I")
    magic = bytes([0, 0, 8, num_dimensions])
    if len(content) < header.size or not content.startswith(magic):
        raise ValueError(
            f"{path}: expected an IDX file of bytes in {num_dimensions} dimensions, which begins "
            f"with {magic.hex(' ')}; got {content[:4].hex(' ') or 'nothing'}. {_AGAIN}"
        )
    shape = header.unpack_from(content)[4:]
    if len(content) != header.size + math.prod(shape):
        raise ValueError(
            f"{path}: expected {math.prod(shape)} bytes for shape {list(shape)}, got "
            f"{len(content) - header.size}. {_AGAIN}"
        )
    return np.frombuffer(content, np.uint8, offset=header.size).reshape(shape)


def download(directory: Path, base_url: str) -> None:
    """Downloads the files that are not in a folder yet, and compares them with the published MD5.

    Args:
        directory: folder for the files, made if it is missing.
        base_url: address of the folder with the published files.

    Raises:
        errors.BuildError: if a file could not be downloaded or written, or has another MD5.
    """
    for name, md5 in MD5_SUMS.items():
        path, url = directory / name, f"{base_url.rstrip('/')}/{name}"
        try:
            directory.mkdir(parents=True, exist_ok=True)
            if path.is_file() and _md5(path.read_bytes()) == md5:
                continue
            content = remote.read_file(url)
            if _md5(content) != md5:
                raise errors.BuildError(
                    f"{remote.shown(url)}: expected the published MD5 {md5}, got {_md5(content)}; "
                    "a proxy or a login page may have answered in its place."
                )
            with atomic_write(path) as file:
                file.write(content)
        except FileNotFoundError:
            raise errors.BuildError(f"{remote.shown(url)} does not exist.\n{_BY_HAND}") from None
        except OSError as error:
            raise_disk_error(error, path)
        except errors.ToldError as error:
            raise errors.BuildError(f"{error}\n{_BY_HAND}") from None


def _md5(content: bytes) -> str:
    # MD5 is what is published; it finds damage and wrong files, not manipulation.
    return hashlib.md5(content, usedforsecurity=False).hexdigest()


_BY_HAND = (
    "Check the network and the address, or download the four files by other means "
    "(https://github.com/zalandoresearch/fashion-mnist, folder data/fashion) and give their folder "
    "with --input."
)
