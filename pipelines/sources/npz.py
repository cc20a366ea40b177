"""Images in arrays of a .npz file, such as `train_images` beside `train_labels` of MedMNIST.

The images are written once into a zip, as files of the format PGM or PPM, which hold the same
numbers; a compressed array can be read only from its start. The listing reads the other arrays as
it reads a table of `--labels`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import re
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.lib import format as npy

from pipelines import errors
from pipelines.sources.source import MAX_FILE_BYTES
from tfrecord_io.format.schema import SPLIT_NAME
from tfrecord_io.stores.files import atomic_write


class _Array(NamedTuple):
    """An array of the file, by its header: its shape, its type, and the CRC-32 of its bytes."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    crc: int

    @property
    def row_length(self) -> int:
        return math.prod(self.shape[1:])


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
        crcs = "-".join(f"{array.crc:08x}" for array in self._images.values())
        target = folder / f"{self.path.name}.{crcs}.zip"
        if target.exists():
            return target
        folder.mkdir(0o700, parents=True, exist_ok=True)
        with (
            self._clear_errors(),
            zipfile.ZipFile(self.path) as arrays,
            errors.clear_write_errors(f"{target}, the images of {self.path.name}"),
            atomic_write(target) as file,
            zipfile.ZipFile(file, "w") as pictures,
        ):
            for name, (shape, dtype, _) in self._images.items():
                kind = 6 if shape[3:] == (3,) else 5
                header = b"P%d %d %d %d\n" % (kind, shape[2], shape[1], np.iinfo(dtype).max)
                with arrays.open(f"{name}.npy") as rows:
                    _read_header(rows)
                    for row in range(shape[0]):
                        pixels = np.frombuffer(
                            rows.read(math.prod(shape[1:]) * dtype.itemsize), dtype
                        )
                        big_endian = pixels.astype(dtype.newbyteorder(">")).tobytes()
                        pictures.writestr(f"{name}#{row}", header + big_endian)
                    rows.read(1)  # at its end, the checksum is compared
        return target

    def columns(self) -> dict[str, pa.ChunkedArray]:
        """Returns `path`, the name of each row's image, and all that is known of it, by name."""
        tables = []
        with self._clear_errors(), np.load(self.path, allow_pickle=False) as arrays:
            for name, (shape, _, _) in self._images.items():
                cells: dict[str, Any] = {"path": [f"{name}#{row}" for row in range(shape[0])]}
                start, known = name.removesuffix("images"), re.search(SPLIT_NAME, name.lower())
                if split := known[1] if known else start.strip("_"):
                    cells["split"] = [split] * shape[0]
                for other, array in self._arrays.items():
                    column = other.removeprefix(start)
                    if other.startswith(start) and array.row_length == 1:
                        cells["label" if column == "labels" else column] = arrays[other].ravel()
                    elif other == f"{start}labels":
                        cells |= dict(zip(self.label_columns, arrays[other].T, strict=True))
                tables.append(pa.table(cells))
            table = pa.concat_tables(tables, promote_options="permissive")
        return dict(zip(table.column_names, table.columns, strict=True))

    @property
    def label_columns(self) -> tuple[str, ...]:
        """The columns of 0 and 1 that hold the labels, if there are several."""
        widths = [a.row_length for name, a in self._arrays.items() if name.endswith("labels")]
        return tuple(map(str, range(max(widths)))) if max(widths, default=1) > 1 else ()

    @property
    def image_size(self) -> tuple[int, int] | None:
        """Height and width of all images in pixels, if they have one size."""
        sizes = {(array.shape[1], array.shape[2]) for array in self._images.values()}
        return sizes.pop() if len(sizes) == 1 else None

    @functools.cached_property
    def _arrays(self) -> dict[str, _Array]:
        found = {}
        with self._clear_errors(), zipfile.ZipFile(self.path) as archive:
            for info in archive.infolist():
                with archive.open(info) as file:
                    shape, is_fortran, dtype = _read_header(file)
                    held, said = info.file_size - file.tell(), math.prod(shape) * dtype.itemsize
                # Pickled objects, of another length, are refused when they are loaded.
                if (is_fortran and len(shape) > 2) or (held != said and not dtype.hasobject):
                    raise ValueError(
                        f"{info.filename} holds {held:,} bytes; expected {said:,} in C order"
                    )
                found[info.filename.removesuffix(".npy")] = _Array(shape, dtype, info.CRC)
        return found

    @functools.cached_property
    def _images(self) -> dict[str, _Array]:
        images = {name: array for name, array in self._arrays.items() if name.endswith("images")}
        for name, array in images.items():
            is_picture = len(array.shape) == 3 or array.shape[3:] in ((1,), (3,))
            size = array.row_length * array.dtype.itemsize
            is_small = 0 < size <= MAX_FILE_BYTES
            if not (is_picture and is_small and array.dtype.str[1:] in ("u1", "u2")):
                raise errors.UserError(
                    f"--input {self.path}: {name} is {array.dtype} {list(array.shape)}; expected "
                    "uint8 or uint16 [images, height, width], with [..., 3] for RGB, of 1 to "
                    f"{MAX_FILE_BYTES:,} bytes an image"
                )
        if not images:
            raise errors.UserError(
                f"--input {self.path} has the arrays {', '.join(self._arrays)}; expected names "
                "that end with images and labels, such as train_images and train_labels"
            )
        return images

    @contextlib.contextmanager
    def _clear_errors(self) -> Iterator[None]:
        try:
            with errors.clear_read_errors(str(self.path)):
                yield
        except (pa.ArrowException, zipfile.BadZipFile, zlib.error, EOFError, LookupError,
                ValueError, OSError) as error:  # fmt: skip
            raise errors.UserError(
                f"--input {self.path} could not be read as --source npz: {error}"
            ) from None


def _read_header(file: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Reads the header of a .npy file, which the rows follow."""
    npy.read_magic(file)
    # Version 2 is for headers above 64 kB, which no array of numbers has.
    return npy.read_array_header_1_0(file)
