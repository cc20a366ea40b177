"""Fashion-MNIST source: four IDX files, gzipped, read from a folder or downloaded.

70,000 grey images of 28 x 28 in 10 classes, 31 MB in all: the pipeline's quick second data set.
Names, counts, classes, address and MD5 sums are those of the data set's own README,
https://github.com/zalandoresearch/fashion-mnist. The IDX format is described at
http://yann.lecun.com/exdb/mnist/: two zero bytes, a type code, the number of dimensions, each
dimension as a big-endian uint32, then the values in row-major order.
"""

import contextlib
import gzip
import hashlib
import math
import os
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
import requests
import urllib3.exceptions
from numpy.typing import NDArray

from pipelines.sources.kaggle import DownloadError

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


@dataclass(frozen=True, kw_only=True)
class PublishedFile:
    """A file of the data set as its README gives it.

    Attributes:
        name: File name.
        shape: Dimensions of its array.
        md5: Of the gzip file, 32 hex digits.
    """

    name: str
    shape: tuple[int, ...]
    md5: str


# By the key that `find_files` uses. The split is called test here, and t10k in the names.
PUBLISHED_FILES = {
    "train_images": PublishedFile(
        name="train-images-idx3-ubyte.gz",
        shape=(60_000, 28, 28),
        md5="8d4fb7e6c68d591d4c3dfef9ec88bf0d",
    ),
    "train_labels": PublishedFile(
        name="train-labels-idx1-ubyte.gz",
        shape=(60_000,),
        md5="25c81989df183df01b3e8a0aad5dffbe",
    ),
    "test_images": PublishedFile(
        name="t10k-images-idx3-ubyte.gz",
        shape=(10_000, 28, 28),
        md5="bef4ecab320f06d8554ea6380940ec79",
    ),
    "test_labels": PublishedFile(
        name="t10k-labels-idx1-ubyte.gz",
        shape=(10_000,),
        md5="bb300cfdad3c16e7a12a480ee83cd310",
    ),
}

_UNSIGNED_BYTE = 0x08  # The type code of uint8, the only one here.
_TYPE_NAMES = {
    0x08: "uint8",
    0x09: "int8",
    0x0B: "int16",
    0x0C: "int32",
    0x0D: "float32",
    0x0E: "float64",
}
_MOST_DIMENSIONS = 3
# A damaged header can claim any size; this bounds what is allocated on its word. The largest
# published file is 47 MB.
_MOST_BYTES = 1 << 30
_CHUNK_BYTES = 1 << 18


def read_idx(path: Path) -> NDArray[np.uint8]:
    """Reads an IDX file of unsigned bytes, gzipped or not.

    Args:
        path: The file; gzip is known by its first two bytes, not by its name.

    Returns:
        uint8 array of the shape that the header gives: [num_images, height, width] for images,
        [num_labels] for labels.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: It is no IDX file of unsigned bytes, is cut short, has bytes left over, or is
            damaged as a gzip file. The message names the file, what was expected and what came.
    """
    try:
        with _opened(path) as file:
            shape = _read_header(file, path)
            num_bytes = math.prod(shape)
            values = file.read(num_bytes)
            if len(values) < num_bytes:
                raise ValueError(
                    f"{path}: expected {num_bytes} bytes of values for shape {list(shape)}, "
                    f"got {len(values)}: the file is cut short. Download it again."
                )
            # To the end, because gzip compares its CRC there.
            if file.read(1):
                raise ValueError(
                    f"{path}: expected the file to end after {num_bytes} bytes of values for shape "
                    f"{list(shape)}, got more. It is damaged, or not what its name says."
                )
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise ValueError(
            f"{path}: expected a whole gzip file, got a damaged one ({error}). Download it again."
        ) from error
    return np.frombuffer(values, dtype=np.uint8).reshape(shape)


def find_files(directory: Path) -> dict[str, Path]:
    """Returns the four files of a folder by key: train_images, train_labels and the test pair.

    Each may be as published or unpacked, that is without `.gz`.

    Args:
        directory: Folder that holds them.

    Raises:
        FileNotFoundError: The folder or some of the files are missing; all of these are named.
    """
    directory = Path(directory)
    if not directory.is_dir():
        raise FileNotFoundError(f"{directory}: expected a folder with the four IDX files.")
    found: dict[str, Path] = {}
    missing: list[str] = []
    for key, published in PUBLISHED_FILES.items():
        names = (published.name, published.name.removesuffix(".gz"))
        paths = [path for name in names if (path := directory / name).is_file()]
        if paths:
            found[key] = paths[0]
        else:
            missing.append(published.name)
    if missing:
        raise FileNotFoundError(
            f"{directory}: expected the four files of Fashion-MNIST under their published names, "
            f"missing: {', '.join(missing)}. They are published at {BASE_URL}"
        )
    return found


def read_split(directory: Path, split: str) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Reads the images and labels of a split, and checks that they belong together.

    Args:
        directory: Folder that holds the four files.
        split: "train" or "test".

    Returns:
        Images uint8 [num_images, height, width] and labels uint8 [num_images], each an index of
        `LABEL_NAMES`.

    Raises:
        FileNotFoundError: A file is missing.
        ValueError: A file is damaged, or the two do not fit each other or the data set.
    """
    if split not in ("train", "test"):
        raise ValueError(f"Fashion-MNIST has the splits train and test, got {split!r}.")
    files = find_files(directory)
    images_path, labels_path = files[f"{split}_images"], files[f"{split}_labels"]
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


def download(
    directory: Path,
    base_url: str = BASE_URL,
    *,
    check_md5: bool = True,
    timeout_s: float = 60.0,
) -> dict[str, Path]:
    """Downloads the files that are not in a folder yet, each whole and checked or not at all.

    A file comes under a temporary name, is checked, and is then renamed. What is there already
    stays, unless its MD5 is wrong.

    Args:
        directory: Folder for the files, made where it is missing.
        base_url: Address that the file names are put after.
        check_md5: Whether the files must be the published ones, which also tells a file that is
            there already from a damaged one; without it, any whole IDX file is taken.
        timeout_s: Seconds without a byte after which a connection counts as dead.

    Returns:
        The four files, by the keys of `find_files`.

    Raises:
        DownloadError: A file could not be had, or is not what it should be.
    """
    directory = Path(directory)
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DownloadError(f"{directory}: cannot be a folder for files: {error}.") from None
    for published in PUBLISHED_FILES.values():
        path = directory / published.name
        if not (path.is_file() and _problem(path, published, check_md5) is None):
            _download_file(
                base_url.rstrip("/") + "/" + published.name, path, published, check_md5, timeout_s
            )
    return find_files(directory)


# --------------------------------------------------------------------------------------------------
# Reading
# --------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[gzip.GzipFile]:
    with path.open("rb") as raw:
        is_gzip = raw.read(2) == b"\x1f\x8b"
        raw.seek(0)
        if is_gzip:
            with gzip.GzipFile(fileobj=raw) as file:
                yield file
        else:
            yield raw


def _read_header(file: gzip.GzipFile, path: Path) -> tuple[int, ...]:
    """Returns the shape; leaves the file at the first value."""
    magic = file.read(4)
    if len(magic) < 4 or magic[:2] != b"\x00\x00":
        raise ValueError(
            f"{path}: expected an IDX file, which begins with two zero bytes, a type and a number "
            f"of dimensions; got {magic.hex(' ') or 'an empty file'}."
        )
    type_code, num_dimensions = magic[2], magic[3]
    if type_code != _UNSIGNED_BYTE:
        raise ValueError(
            f"{path}: expected IDX values of type uint8 (0x08), got "
            f"{_TYPE_NAMES.get(type_code, 'an unknown type')} (0x{type_code:02x})."
        )
    if not 1 <= num_dimensions <= _MOST_DIMENSIONS:
        raise ValueError(
            f"{path}: expected 1 dimension (labels) to {_MOST_DIMENSIONS} (images), "
            f"got {num_dimensions}."
        )
    header = file.read(4 * num_dimensions)
    if len(header) < 4 * num_dimensions:
        raise ValueError(
            f"{path}: expected {num_dimensions} dimensions of 4 bytes each, got {len(header)} "
            "bytes: the file is cut short. Download it again."
        )
    shape = tuple(int(size) for size in np.frombuffer(header, dtype=">u4"))
    if math.prod(shape) > _MOST_BYTES:
        raise ValueError(
            f"{path}: expected at most {_MOST_BYTES} bytes of values, but the header's shape "
            f"{list(shape)} asks for {math.prod(shape)}: the header is damaged."
        )
    return shape


# --------------------------------------------------------------------------------------------------
# Downloading
# --------------------------------------------------------------------------------------------------


def _problem(path: Path, published: PublishedFile, check_md5: bool) -> str | None:
    """What keeps a file from being the published one (or a whole IDX file), or None."""
    if check_md5:
        with path.open("rb") as file:
            # MD5 guards against damage and mix-ups, not against malice: it is what is published.
            md5 = hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
        if md5 != published.md5:
            return f"expected the published MD5 {published.md5}, got {md5}"
        return None
    try:
        shape = read_idx(path).shape
    except ValueError as error:
        return str(error)
    if len(shape) != len(published.shape):
        return f"expected {len(published.shape)} dimensions, got shape {list(shape)}"
    return None


def _download_file(
    url: str, path: Path, published: PublishedFile, check_md5: bool, timeout_s: float
) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    shown = _without_password(url)
    try:
        with requests.get(url, stream=True, timeout=timeout_s) as response:
            response.raise_for_status()
            with temporary.open("wb") as file:
                # As sent: some servers call the file's own gzip an encoding, to be undone.
                for chunk in response.raw.stream(_CHUNK_BYTES, decode_content=False):
                    file.write(chunk)
        if problem := _problem(temporary, published, check_md5):
            raise DownloadError(
                f"{shown} is not {published.name} of Fashion-MNIST: {problem}.\n"
                "Check the address; a proxy or a login page may have answered in its place."
            )
        temporary.replace(path)
    except requests.HTTPError as error:
        raise DownloadError(
            f"{shown} was refused by the server (HTTP {error.response.status_code}).\n{_BY_HAND}"
        ) from None
    except (requests.Timeout, urllib3.exceptions.TimeoutError):
        raise DownloadError(
            f"{shown}: the server sent nothing for {timeout_s:g} s.\n{_BY_HAND}"
        ) from None
    except (requests.RequestException, urllib3.exceptions.HTTPError) as error:
        raise DownloadError(
            f"{shown}: the connection failed or was cut ({type(error).__name__}).\n{_BY_HAND}"
        ) from None
    except OSError as error:
        raise DownloadError(f"{path} could not be written: {error.strerror}.") from None
    finally:
        temporary.unlink(missing_ok=True)


def _without_password(url: str) -> str:
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2], query="").geturl()


_BY_HAND = (
    "Check the network and the address, or fetch the four files by other means "
    "(https://github.com/zalandoresearch/fashion-mnist, folder data/fashion) and give their folder "
    "with --input."
)
