"""Fashion-MNIST: four gzipped IDX files, read from a folder or downloaded, become image files.

Names, classes and MD5 sums are from https://github.com/zalandoresearch/fashion-mnist, the
file format from http://yann.lecun.com/exdb/mnist/.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pipelines import errors
from pipelines.sources.rows import PackedSource
from tfrecord_io.stores import remote
from tfrecord_io.stores.files import atomic_write
from tfrecord_io.terminal.address import Address

#: In the publisher's order. The first one is "T-shirt/top" there, which cannot name a folder.
LABEL_NAMES = ("T-shirt or top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt",
               "Sneaker", "Bag", "Ankle boot")  # fmt: skip
IMAGE_SIZE = (28, 28)
#: The copy that Keras downloads; that of the publisher has no https.
BASE_URL = "https://storage.googleapis.com/tensorflow/tf-keras-datasets/"

# MD5 of each gzip file, as 32 hexadecimal digits.
MD5_SUMS = {
    "train-images-idx3-ubyte.gz": "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
    "train-labels-idx1-ubyte.gz": "25c81989df183df01b3e8a0aad5dffbe",
    "t10k-images-idx3-ubyte.gz": "bef4ecab320f06d8554ea6380940ec79",
    "t10k-labels-idx1-ubyte.gz": "bb300cfdad3c16e7a12a480ee83cd310",
}
# How the names of the files of a split begin.
_PREFIXES = {"train": "train", "test": "t10k"}

_BY_HAND = (
    "Check the network and the address, or download the four files by other means "
    "(https://github.com/zalandoresearch/fashion-mnist, folder data/fashion) and give their folder "
    "with --input."
)


class FashionMnistSource(PackedSource):
    """The images of the four files in a folder, as `{train,test}/CLASS/NUMBER.pgm`.

    The number is the image's place in the file of its split.
    """

    kind = "fashion_mnist"

    def files(self) -> Mapping[str, Path]:
        files = {name: self.path / name for name in MD5_SUMS}
        if missing := [name for name, path in files.items() if not path.is_file()]:
            raise errors.UserError(
                f"{self.path}: expected a folder with the four files of Fashion-MNIST under their "
                f"published names, missing: {', '.join(missing)}.\n{_BY_HAND}"
            )
        return files

    def rows(self) -> Iterator[tuple[str, bytes]]:
        for split, prefix in _PREFIXES.items():
            files = [_read(path) for name, path in self.files().items() if name.startswith(prefix)]
            images, labels = (np.frombuffer(gzip.decompress(some), np.uint8) for some in files)
            # The values follow a header of four bytes, and four for each dimension.
            pictures = images[16:].reshape(-1, *IMAGE_SIZE)
            for number, label in enumerate(labels[8:].tolist()):
                yield f"{split}/{LABEL_NAMES[label]}/{number:05d}.pgm", _pgm(pictures[number])


def _pgm(image: NDArray[np.uint8]) -> bytes:
    """Returns an image uint8 [height, width] as a binary PGM file (netpbm's P5)."""
    height, width = image.shape
    return b"P5 %d %d 255\n" % (width, height) + image.tobytes()


def _read(path: Path) -> bytes:
    with errors.clear_read_errors(str(path)):
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
        path, url = directory / name, Address(base_url) / name
        with contextlib.suppress(errors.UserError):
            if path.exists() and _read(path):
                continue
        try:
            content = _published(remote.read_file(url), name, url)
        except FileNotFoundError:
            raise errors.BuildError(f"{url} does not exist.\n{_BY_HAND}") from None
        except errors.ToldError as error:
            raise errors.BuildError(f"{error}\n{_BY_HAND}") from None
        with errors.clear_write_errors(f"{path} (--download_dir chooses another folder)"):
            directory.mkdir(parents=True, exist_ok=True)
            with atomic_write(path) as file:
                file.write(content)
