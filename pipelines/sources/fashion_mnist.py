"""Fashion-MNIST: four gzipped IDX files, read from a folder or downloaded.

Each image reaches the build as a PGM file in memory. Names, classes, address and MD5 sums are from
https://github.com/zalandoresearch/fashion-mnist, the file format from
http://yann.lecun.com/exdb/mnist/.
"""

from __future__ import annotations

import contextlib
import functools
import gzip
import hashlib
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from pipelines import errors
from pipelines.sources.source import Member, Reader, Source
from tfrecord_io.files import atomic_write
from tfrecord_io.stores import remote

LABEL_NAMES = ("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker",
               "Bag", "Ankle boot")  # fmt: skip
IMAGE_SIZE = (28, 28)
BASE_URL = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/"

# MD5 of each gzip file, as 32 hexadecimal digits.
MD5_SUMS = {
    "train-images-idx3-ubyte.gz": "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
    "train-labels-idx1-ubyte.gz": "25c81989df183df01b3e8a0aad5dffbe",
    "t10k-images-idx3-ubyte.gz": "bef4ecab320f06d8554ea6380940ec79",
    "t10k-labels-idx1-ubyte.gz": "bb300cfdad3c16e7a12a480ee83cd310",
}
_BY_HAND = (
    "Check the network and the address, or download the four files by other means "
    "(https://github.com/zalandoresearch/fashion-mnist, folder data/fashion) and give their folder "
    "with --input."
)


@dataclass(frozen=True)
class FashionMnistSource(Source):
    """The four files in a folder; a worker unpacks the splits that it reads into memory: 55 MB."""

    directory: Path

    gives_labels: ClassVar[bool] = True

    def members(self) -> Iterator[Member]:
        """Yields the images, named by their file and their number there."""
        if missing := [name for name in MD5_SUMS if not (self.directory / name).is_file()]:
            raise errors.UserError(
                f"{self.directory}: expected a folder with the four files of Fashion-MNIST under "
                f"their published names, missing: {', '.join(missing)}.\n{_BY_HAND}"
            )
        for split, prefix in (("train", "train"), ("test", "t10k")):
            images, labels = read_split(self.directory, prefix)
            for index, (image, label) in enumerate(zip(images, labels.tolist(), strict=True)):
                yield Member(
                    name=f"{prefix}-images-idx3-ubyte/{index:05d}.pgm",
                    size=len(_pgm(image)),
                    offset=index,
                    stored_size=image.size,
                    version=zlib.crc32(image.tobytes()) << 8 | label,
                    split=split,
                    label=LABEL_NAMES[label],
                )

    @contextlib.contextmanager
    def open(self) -> Iterator[_Reader]:
        yield _Reader(self.directory)

    def describe(self) -> dict[str, Any]:
        return {"kind": "fashion_mnist", "name": "fashion-mnist"}


class _Reader(Reader):
    def __init__(self, directory: Path) -> None:
        self._read_split = functools.cache(functools.partial(read_split, directory))

    def read(self, member: Member) -> bytes:
        # New splits take images from both files.
        images, _ = self._read_split(member.name.partition("-")[0])
        return _pgm(images[member.offset])


def _pgm(image: NDArray[np.uint8]) -> bytes:
    """Returns an image uint8 [height, width] as a binary PGM file (netpbm's P5)."""
    height, width = image.shape
    return b"P5 %d %d 255\n" % (width, height) + image.tobytes()


def read_split(directory: Path, prefix: str) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Reads the images and labels of a split, `train` or `t10k`.

    Returns:
        images uint8 [num_images, 28, 28], and labels uint8 [num_images], each an index of
        `LABEL_NAMES`.

    Raises:
        errors.UserError: if a file is not the published one.
        errors.BuildError: if it cannot be read.
    """
    # The values follow a header of four bytes, and four for each dimension, in row-major order.
    files = [_read(directory / name) for name in MD5_SUMS if name.startswith(prefix)]
    images, labels = (np.frombuffer(gzip.decompress(content), np.uint8) for content in files)
    return images[16:].reshape(-1, *IMAGE_SIZE), labels[8:]


def _read(path: Path) -> bytes:
    with errors.clear_read_errors(f"{path} (every worker must be able to)"):
        return _published(path.read_bytes(), path.name, str(path))


def _published(content: bytes, name: str, shown: str) -> bytes:
    """Returns a file's content; raises `errors.UserError` if it has another MD5 than published."""
    # MD5 is what is published; it finds damage and wrong files, not manipulation.
    md5 = hashlib.md5(content, usedforsecurity=False).hexdigest()
    if md5 != MD5_SUMS[name]:
        raise errors.UserError(
            f"{shown}: expected the published MD5 {MD5_SUMS[name]}, got {md5}; the file is damaged "
            "or another one, or a proxy or a login page answered in its place"
        )
    return content


def download(directory: Path, base_url: str) -> None:
    """Downloads the files that are not in a folder yet, and compares them with the published MD5.

    Raises:
        errors.BuildError: if a file could not be downloaded or written, or has another MD5.
    """
    for name in MD5_SUMS:
        path, url = directory / name, f"{base_url.rstrip('/')}/{name}"
        with contextlib.suppress(errors.UserError):
            if path.exists() and _read(path):
                continue
        try:
            content = _published(remote.read_file(url), name, remote.shown(url))
        except FileNotFoundError:
            raise errors.BuildError(f"{remote.shown(url)} does not exist.\n{_BY_HAND}") from None
        except errors.ToldError as error:
            raise errors.BuildError(f"{error}\n{_BY_HAND}") from None
        with errors.clear_write_errors(f"{path} (--download_dir chooses another folder)"):
            directory.mkdir(parents=True, exist_ok=True)
            with atomic_write(path) as file:
                file.write(content)
