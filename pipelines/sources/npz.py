"""Images in arrays of a .npz file, such as `train_images` beside `train_labels` of MedMNIST.

An image of uint8 or uint16 becomes a file of the format PGM or PPM, which holds the same numbers.
"""

from __future__ import annotations

import math
import zipfile
from collections.abc import Iterator
from typing import IO, Any

import numpy as np
import pyarrow as pa
from numpy.lib import format as npy

from pipelines import errors
from pipelines.sources.rows import ROW_BYTES, RowSource, split_in
from pipelines.sources.source import MAX_FILE_BYTES

_Header = tuple[tuple[int, ...], np.dtype[Any]]


class NpzSource(RowSource):
    """Images in a .npz file; the name of one is `train_images#17`."""

    kind = "npz"

    def rows(self) -> Iterator[tuple[str, bytes]]:
        with zipfile.ZipFile(self.path) as archive:
            for name, ((num_rows, height, width, *channels), dtype) in self._images().items():
                numbers = (6 if channels == [3] else 5, width, height, np.iinfo(dtype).max)
                num_bytes = dtype.itemsize * math.prod((height, width, *channels))
                with archive.open(f"{name}.npy") as file:
                    _read_header(file)
                    for row in range(num_rows):
                        if len(data := file.read(num_bytes)) < num_bytes:
                            raise EOFError(f"{name} ends in row {row:,} of {num_rows:,}")
                        pixels = np.frombuffer(data, dtype).astype(dtype.newbyteorder(">"))
                        yield f"{name}#{row}", b"P%d %d %d %d\n" % numbers + pixels.tobytes()

    def columns(self, notes: list[str]) -> dict[str, pa.ChunkedArray]:
        headers, images, parts = self._headers(), self._images(), []
        unread, budget = headers.keys() - images.keys(), self.budget()
        with self.clear_errors(), np.load(self.path) as arrays:
            for name, ((num_rows, *_), _) in images.items():
                budget.take(num_rows * ROW_BYTES + _num_bytes(headers[name]))
                cells: dict[str, Any] = {"path": [f"{name}#{row}" for row in range(num_rows)]}
                start = name.removesuffix("images")
                if split := split_in(name) or start.strip("_"):
                    cells["split"] = [split] * num_rows
                for other in [other for other in headers if other.startswith(start)]:
                    column, width = other.removeprefix(start), _row_length(headers[other])
                    budget.take(_num_bytes(headers[other]))
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
        labels = (header for name, header in self._headers().items() if name.endswith("labels"))
        width = max(map(_row_length, labels), default=1)
        return _names(width) if width > 1 else ()

    @property
    def image_size(self) -> tuple[int, int] | None:
        sizes = {(shape[1], shape[2]) for shape, _ in self._images().values()}
        return sizes.pop() if len(sizes) == 1 else None

    def _headers(self) -> dict[str, _Header]:
        found = {}
        with self.clear_errors(), zipfile.ZipFile(self.path) as archive:
            for info in archive.infolist():
                with archive.open(info) as file:
                    name, header = info.filename.removesuffix(".npy"), _read_header(file)
                    held = info.file_size - file.tell()
                # Pickled objects, of another length, are refused when they are loaded.
                if held != (said := _num_bytes(header)) and not header[1].hasobject:
                    raise ValueError(f"{name} holds {held:,} bytes, but its header says {said:,}")
                found[name] = header
        return found

    def _images(self) -> dict[str, _Header]:
        """Returns the arrays of images; raises `errors.UserError` if there are none."""
        headers = self._headers()
        images = {name: header for name, header in headers.items() if name.endswith("images")}
        for name, (shape, dtype) in images.items():
            is_picture = len(shape) == 3 or (len(shape) == 4 and shape[3] in (1, 3))
            num_bytes = math.prod(shape[1:]) * dtype.itemsize
            is_sized = 0 < num_bytes <= MAX_FILE_BYTES
            if not is_picture or not is_sized or dtype.str[1:] not in ("u1", "u2"):
                raise errors.UserError(
                    f"--input {self.path}: {name} is {dtype} {list(shape)}; expected uint8 or "
                    "uint16 [images, height, width], with [..., 3] for RGB, of 1 to "
                    f"{MAX_FILE_BYTES:,} bytes an image"
                )
        if not images:
            raise errors.UserError(
                f"--input {self.path} has the arrays {', '.join(headers)}; expected names that end "
                "with images and labels, such as train_images and train_labels"
            )
        return images


def _read_header(file: IO[bytes]) -> _Header:
    """Reads the header of a .npy file, which the rows follow."""
    npy.read_magic(file)
    # Version 2 is for headers above 64 kB, which no array of numbers has.
    shape, is_fortran, dtype = npy.read_array_header_1_0(file)
    if is_fortran and len(shape) > 2:
        raise ValueError("an array is stored in Fortran's order; store it in C's")
    return shape, dtype


def _num_bytes(header: _Header) -> int:
    return math.prod(header[0]) * header[1].itemsize


def _row_length(header: _Header) -> int:
    return math.prod(header[0][1:])


def _names(num_labels: int) -> tuple[str, ...]:
    return tuple(map(str, range(num_labels)))
