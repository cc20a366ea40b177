"""Images in arrays of a .npz file, such as `train_images` beside `train_labels` of MedMNIST.

The arrays of images are unpacked once, because a compressed file can be read only from its start.
A worker maps them into memory, and reads an image as a file of the format PGM or PPM, which holds
the same numbers. The listing reads the other arrays as it reads a table of `--labels`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import re
import shutil
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.lib import format as npy

from pipelines import errors
from pipelines.sources.source import MAX_FILE_BYTES, Member, Reader, Source
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
class NpzSource(Source):
    """Images in a .npz file; the name of one is `train_images#17`.

    Attributes:
        path: the file.
        scratch_dir: local folder for the unpacked arrays; None before `unpacked`.
    """

    path: Path
    scratch_dir: Path | None = None

    def unpacked(self, scratch_dir: Path) -> NpzSource:
        """Returns the source with its arrays of images in a local folder."""
        for name, array in self._images.items():
            target = self._file(scratch_dir, name, array)
            if not target.exists():
                scratch_dir.mkdir(0o700, parents=True, exist_ok=True)
                with (
                    self.clear_errors(),
                    zipfile.ZipFile(self.path) as archive,
                    archive.open(f"{name}.npy") as packed,
                    errors.clear_write_errors(f"{target}, an array of {self.path.name}"),
                    atomic_write(target) as file,
                ):
                    shutil.copyfileobj(packed, file, 1 << 20)
        return dataclasses.replace(self, scratch_dir=scratch_dir)

    def members(self) -> Iterator[Member]:
        for name, array in self._images.items():
            size = array.row_length * array.dtype.itemsize
            for row in range(array.shape[0]):
                yield Member(f"{name}#{row}", size, row, size, array.crc)

    @contextlib.contextmanager
    def open(self) -> Iterator[_NpzReader]:
        scratch_dir = self.scratch_dir or self.path.parent
        with self.clear_errors(), contextlib.ExitStack() as stack:
            arrays = {}
            for name, array in self._images.items():
                path = self._file(scratch_dir, name, array)
                arrays[name] = np.load(path, mmap_mode="r", allow_pickle=False)
            stack.pop_all()
        yield _NpzReader(arrays)

    def describe(self) -> dict[str, Any]:
        return {"kind": "npz", "name": self.path.name}

    def _file(self, folder: Path, name: str, array: _Array) -> Path:
        return folder / f"{self.path.name}.{name}.{array.crc:08x}.npy"

    def columns(self, notes: list[str]) -> dict[str, pa.ChunkedArray]:
        """Returns `path`, the name of each row's image, and all that is known of it, by name.

        `notes` takes what the user should know. Raises `errors.UserError` if it cannot be read.
        """
        parts, unread = [], self._arrays.keys() - self._images.keys()
        with self.clear_errors(), np.load(self.path, allow_pickle=False) as arrays:
            for name, image in self._images.items():
                num_rows = image.shape[0]
                cells: dict[str, Any] = {"path": [f"{name}#{row}" for row in range(num_rows)]}
                start = name.removesuffix("images")
                match = re.search(SPLIT_NAME, name.lower())
                if split := match[1] if match else start.strip("_"):
                    cells["split"] = [split] * num_rows
                for other in [other for other in self._arrays if other.startswith(start)]:
                    column, width = other.removeprefix(start), self._arrays[other].row_length
                    if column == "labels" and width > 1:
                        cells |= dict(zip(_names(width), arrays[other].T, strict=True))
                    elif width == 1:
                        cells["label" if column == "labels" else column] = arrays[other].ravel()
                    else:
                        continue
                    unread.discard(other)
                parts.append(pa.table(cells))
            table = pa.concat_tables(parts, promote_options="permissive")
        if unread:
            notes.append(f"not read: the arrays {', '.join(sorted(unread))} of {self.path.name}")
        return dict(zip(table.column_names, table.columns, strict=True))

    @property
    def label_columns(self) -> tuple[str, ...]:
        """The columns of 0 and 1 that hold the labels, if there are several."""
        labels = (array for name, array in self._arrays.items() if name.endswith("labels"))
        width = max((array.row_length for array in labels), default=1)
        return _names(width) if width > 1 else ()

    @property
    def image_size(self) -> tuple[int, int] | None:
        """Height and width of all images in pixels, if they have one size."""
        sizes = {(array.shape[1], array.shape[2]) for array in self._images.values()}
        return sizes.pop() if len(sizes) == 1 else None

    @functools.cached_property
    def _arrays(self) -> dict[str, _Array]:
        found = {}
        with self.clear_errors(), zipfile.ZipFile(self.path) as archive:
            for info in archive.infolist():
                name = info.filename.removesuffix(".npy")
                with archive.open(info) as file:
                    shape, dtype = _read_header(file)
                    held, said = info.file_size - file.tell(), math.prod(shape) * dtype.itemsize
                # Pickled objects, of another length, are refused when they are loaded.
                if held != said and not dtype.hasobject:
                    raise ValueError(f"{name} holds {held:,} bytes, but its header says {said:,}")
                found[name] = _Array(shape, dtype, info.CRC)
        return found

    @functools.cached_property
    def _images(self) -> dict[str, _Array]:
        """The arrays of images; raises `errors.UserError` if there are none."""
        images = {name: array for name, array in self._arrays.items() if name.endswith("images")}
        for name, (shape, dtype, _) in images.items():
            is_picture = len(shape) == 3 or (len(shape) == 4 and shape[3] in (1, 3))
            num_bytes = math.prod(shape[1:]) * dtype.itemsize
            if (
                not is_picture
                or dtype.str[1:] not in ("u1", "u2")
                or not (0 < num_bytes <= MAX_FILE_BYTES)
            ):
                raise errors.UserError(
                    f"--input {self.path}: {name} is {dtype} {list(shape)}; expected uint8 or "
                    "uint16 [images, height, width], with [..., 3] for RGB, of 1 to "
                    f"{MAX_FILE_BYTES:,} bytes an image"
                )
        if not images:
            raise errors.UserError(
                f"--input {self.path} has the arrays {', '.join(self._arrays)}; expected names "
                "that end with images and labels, such as train_images and train_labels"
            )
        return images

    @contextlib.contextmanager
    def clear_errors(self) -> Iterator[None]:
        """Turns the errors of a damaged or missing file into those of a build."""
        try:
            with errors.clear_read_errors(str(self.path)):
                yield
        except (pa.ArrowException, zipfile.BadZipFile, zlib.error, EOFError, LookupError,
                ValueError, OSError) as error:  # fmt: skip
            raise errors.UserError(
                f"--input {self.path} could not be read as --source npz: {error}"
            ) from None


@dataclasses.dataclass(frozen=True)
class _NpzReader(Reader):
    arrays: Mapping[str, np.ndarray]

    def read(self, member: Member) -> bytes:
        name, _, row = member.name.rpartition("#")
        array = self.arrays[name]
        image = array[int(row)]
        kind = 6 if image.shape[2:] == (3,) else 5
        header = b"P%d %d %d %d\n" % (kind, *image.shape[1::-1], np.iinfo(array.dtype).max)
        return header + image.astype(array.dtype.newbyteorder(">")).tobytes()


def _read_header(file: IO[bytes]) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """Reads the header of a .npy file, which the rows follow."""
    npy.read_magic(file)
    # Version 2 is for headers above 64 kB, which no array of numbers has.
    shape, is_fortran, dtype = npy.read_array_header_1_0(file)
    if is_fortran and len(shape) > 2:
        raise ValueError("an array is stored in Fortran's order; store it in C's")
    if len(shape) < 3 and math.prod(shape) * dtype.itemsize > MAX_FILE_BYTES:
        raise ValueError(f"an array of {list(shape)} is too large for labels")
    return shape, dtype


def _names(num_labels: int) -> tuple[str, ...]:
    return tuple(map(str, range(num_labels)))
