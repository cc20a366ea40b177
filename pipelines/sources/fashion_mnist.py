"""Fashion-MNIST: four gzipped IDX files, read from a folder or downloaded.

It has 70,000 grey images of 28 x 28 pixels in 10 classes, 31 MB in all. Each image reaches the
build as a PGM file in memory, so that it takes the same path as images of other sources.

Names, counts, classes, address and MD5 sums are from the dataset's README,
https://github.com/zalandoresearch/fashion-mnist.
"""

import contextlib
import hashlib
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from pipelines import errors
from pipelines.sources.downloads import raise_disk_error
from pipelines.sources.idx import read_idx
from pipelines.sources.member import Member
from pipelines.sources.reader import Reader
from pipelines.sources.source import Source
from pipelines.stores import remote
from tfrecord_io.files import atomic_write

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


def find_files(directory: Path) -> dict[str, Path]:
    """Returns the paths of the four files in a folder.

    Each may be as published, or unpacked and named without `.gz`.

    Args:
        directory: folder that holds them.

    Returns:
        the paths by the published names.

    Raises:
        FileNotFoundError: if the folder or a file is missing; the message names all of them.
    """
    if not directory.is_dir():
        raise FileNotFoundError(f"{directory}: expected a folder with the four IDX files.")
    found: dict[str, Path] = {}
    missing: list[str] = []
    for name in MD5_SUMS:
        paths = (directory / name, directory / name.removesuffix(".gz"))
        path = next((path for path in paths if path.is_file()), None)
        if path:
            found[name] = path
        else:
            missing.append(name)
    if missing:
        raise FileNotFoundError(
            f"{directory}: expected the four files of Fashion-MNIST under their published names, "
            f"missing: {', '.join(missing)}. They are published at {BASE_URL}"
        )
    return found


def read_split(directory: Path, prefix: str) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Reads the images and labels of a split, and checks that they belong together.

    Args:
        directory: folder that holds the four files.
        prefix: what the names of the split's files begin with, `train` or `t10k`.

    Returns:
        images uint8 [num_images, height, width], and labels uint8 [num_images], each an index of
        `LABEL_NAMES`.

    Raises:
        FileNotFoundError: if a file is missing.
        ValueError: if a file is damaged, or images and labels do not match.
    """
    files = find_files(directory)
    images_path = files[f"{prefix}-images-idx3-ubyte.gz"]
    labels_path = files[f"{prefix}-labels-idx1-ubyte.gz"]
    images, labels = read_idx(images_path), read_idx(labels_path)
    if images.ndim != 3:
        raise ValueError(
            f"{images_path}: expected images [num_images, height, width], got {list(images.shape)}."
        )
    if labels.shape != images.shape[:1]:
        raise ValueError(
            f"{labels_path}: expected {len(images)} labels, one for each image in "
            f"{images_path.name}, got shape {list(labels.shape)}."
        )
    if labels.size and labels.max() >= len(LABEL_NAMES):
        raise ValueError(
            f"{labels_path}: expected labels from 0 to {len(LABEL_NAMES) - 1}, got {labels.max()}."
        )
    return images, labels


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
    def open(self) -> Iterator["_Reader"]:
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
        if (
            member.offset >= len(images)
            or _version(images[member.offset], int(labels[member.offset])) != member.version
        ):
            raise errors.BuildError(
                f"{self._directory} changed since the build began; start again with --overwrite"
            )
        return _pgm(images[member.offset])


def _version(image: NDArray[np.uint8], label: int) -> int:
    """Returns a number that changes when the image or its label does."""
    return zlib.crc32(image.tobytes()) << 8 | label


def _pgm(image: NDArray[np.uint8]) -> bytes:
    """Returns an image uint8 [height, width] as a binary PGM file (netpbm's P5)."""
    height, width = image.shape
    return b"P5 %d %d 255\n" % (width, height) + image.tobytes()


def download(directory: Path, base_url: str) -> None:
    """Downloads the files that are not in a folder yet, and compares them with the published MD5.

    Args:
        directory: folder for the files, made if it is missing.
        base_url: address of the folder with the published files.

    Raises:
        errors.BuildError: if a file could not be downloaded or written, or has another MD5.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise_disk_error(error, directory)
    for name, md5 in MD5_SUMS.items():
        path = directory / name
        if not (path.is_file() and _md5(path.read_bytes()) == md5):
            _download_file(f"{base_url.rstrip('/')}/{name}", path, md5)


def _download_file(url: str, path: Path, md5: str) -> None:
    shown = remote.shown(url)
    try:
        content = remote.read_file(url)
    except FileNotFoundError:
        raise errors.BuildError(f"{shown} does not exist.\n{_BY_HAND}") from None
    except (errors.BuildError, errors.UserError) as error:
        raise errors.BuildError(f"{error}\n{_BY_HAND}") from None
    if _md5(content) != md5:
        raise errors.BuildError(
            f"{shown} is not {path.name} of Fashion-MNIST: expected the published MD5 {md5}, got "
            f"{_md5(content)}.\n"
            "Check the address; a proxy or a login page may have answered in its place."
        )
    try:
        with atomic_write(path) as file:
            file.write(content)
    except OSError as error:
        raise_disk_error(error, path)


def _md5(content: bytes) -> str:
    # MD5 is what is published; it finds damage and wrong files, not manipulation.
    return hashlib.md5(content, usedforsecurity=False).hexdigest()


_BY_HAND = (
    "Check the network and the address, or download the four files by other means "
    "(https://github.com/zalandoresearch/fashion-mnist, folder data/fashion) and give their folder "
    "with --input."
)
