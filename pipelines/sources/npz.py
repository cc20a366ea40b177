"""Images and labels in arrays of a .npz file, named as MedMNIST's: `train_images`, `train_labels`.

The images are written once into a zip, as files of the format PGM or PPM, which hold the same
numbers; a compressed array can be read only from its start. The listing reads the labels as it
reads a table of `--labels`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np
import pyarrow as pa
from numpy.lib import format as npy

from pipelines import errors
from tfrecord_io.stores.files import atomic_write

_SPLITS = ("train", "val", "test")
_RULE = (
    "expected arrays train_images and train_labels, and such of val and test if there are some: "
    "images as uint8 [images, height, width] or [images, height, width, 3] of one size, in C "
    "order, and labels as whole numbers [images] or [images, labels of each]"
)


@dataclasses.dataclass(frozen=True)
class NpzFile:
    """A .npz file with images and labels; the name of an image is `train_images#17`.

    Its methods raise `errors.UserError` if the file is damaged, or its arrays are others.

    Attributes:
        path: the file.
    """

    path: Path

    def packed(self, folder: Path) -> Path:
        """Returns a zip of all images in a local folder; it is written if it is not there."""
        shape, labels = self._found
        status = self.path.stat()
        target = folder / f"{self.path.name}.{status.st_size}.{status.st_mtime_ns}.zip"
        if target.exists():
            return target
        folder.mkdir(0o700, parents=True, exist_ok=True)
        header = b"P%d %d %d 255\n" % (6 if shape[2:] else 5, shape[1], shape[0])
        with (
            self._clear_errors(),
            zipfile.ZipFile(self.path) as arrays,
            errors.clear_write_errors(f"{target}, the images of {self.path.name}"),
            atomic_write(target) as file,
            zipfile.ZipFile(file, "w") as pictures,
        ):
            for split in labels:
                with arrays.open(f"{split}_images.npy") as rows:
                    _read_header(rows)
                    for row in range(len(labels[split])):
                        pixels = rows.read(math.prod(shape))
                        pictures.writestr(f"{split}_images#{row}", header + pixels)
                    rows.read(1)  # at its end, the checksum is compared
        return target

    def columns(self) -> dict[str, pa.ChunkedArray]:
        """Returns `path`, the name of each image, its `split`, and its `label` or labels."""
        labels = self._found[1]
        names = self.label_columns or ("label",)
        values = np.concatenate([*labels.values()]).T
        splits = [split for split, rows in labels.items() for _ in rows]
        paths = [f"{split}_images#{row}" for split in labels for row in range(len(labels[split]))]
        columns = {"path": paths, "split": splits, **dict(zip(names, values, strict=True))}
        return {name: pa.chunked_array([cells]) for name, cells in columns.items()}

    @property
    def label_columns(self) -> tuple[str, ...]:
        """The columns of 0 and 1 that hold the labels, if there are several."""
        width = self._found[1]["train"].shape[1]
        return tuple(map(str, range(width))) if width > 1 else ()

    @property
    def image_size(self) -> tuple[int, int]:
        """Height and width of all images in pixels."""
        return self._found[0][:2]

    @functools.cached_property
    def _found(self) -> tuple[tuple[int, ...], dict[str, np.ndarray]]:
        """The shape of each image, and by split the labels, [images, labels of each]."""
        shapes, found = set[tuple[int, ...]](), dict[str, np.ndarray]()
        with self._clear_errors(), np.load(self.path, allow_pickle=False) as arrays:
            for split in _SPLITS:
                if split != "train" and f"{split}_images" not in arrays:
                    continue
                with arrays.zip.open(f"{split}_images.npy") as file:
                    shape, is_fortran, dtype = _read_header(file)
                labels = arrays[f"{split}_labels"]
                found[split] = labels.reshape(len(labels), -1)
                shapes |= {(*shape[1:], *labels.shape[1:])}
                is_picture = dtype == np.uint8 and not is_fortran
                is_picture &= len(shape) == 3 or shape[3:] == (3,)
                is_labelled = labels.dtype.kind in "iu" and len(labels) == shape[0]
                if not is_picture or not is_labelled or len(shapes) > 1:
                    raise ValueError(
                        f"{split}_images is {dtype} {list(shape)}{' in Fortran order' * is_fortran}"
                        f", {split}_labels {labels.dtype} {list(labels.shape)}"
                    )
        return shape[1:], found

    @contextlib.contextmanager
    def _clear_errors(self) -> Iterator[None]:
        try:
            with errors.clear_read_errors(str(self.path)):
                yield
        except (
            zipfile.BadZipFile,
            zlib.error,
            EOFError,
            LookupError,
            ValueError,
            OSError,
        ) as error:
            raise errors.UserError(
                f"--input {self.path} could not be read as --source npz: {error}; {_RULE}"
            ) from None


def _read_header(file: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Reads the header of a .npy file, which the rows follow."""
    npy.read_magic(file)
    # Version 2 is for headers above 64 kB, which no array of numbers has.
    return npy.read_array_header_1_0(file)
