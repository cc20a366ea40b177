"""Images in the rows of a table or array: a tar is made of them, which can be read in any order.

The rows hold the labels, too. The listing reads them as it reads a table of `--labels`.
"""

from __future__ import annotations

import abc
import contextlib
import dataclasses
import io
import re
import tarfile
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, ClassVar

import pyarrow as pa

from pipelines import errors
from pipelines.sources.archive import ArchiveSource, local_archive
from pipelines.sources.packing import Budget, make_tar, version_of
from tfrecord_io.format.schema import SPLIT_NAME
from tfrecord_io.terminal.printing import bar

#: The least that a row takes: the header of its image in the tar.
ROW_BYTES = tarfile.BLOCKSIZE


@dataclasses.dataclass(frozen=True)
class RowSource(abc.ABC):
    """Images beside their labels in the rows of a file, or of files in a folder.

    Attributes:
        path: the file or folder.
        kind: the source's name in flags and in the manifest.
        label_columns: the columns of 0 and 1 that hold the labels, if there are several.
        image_size: height and width of all images in pixels, if it is known that they have one.
    """

    path: Path
    kind: ClassVar[str]
    label_columns: ClassVar = ()
    image_size: ClassVar = None

    @abc.abstractmethod
    def columns(self, notes: list[str]) -> dict[str, pa.ChunkedArray]:
        """Returns `path`, the name of each row's image, and all that is known of it, by name.

        A column of classes whose names have an order is a dictionary. `notes` takes what the user
        should know. Raises `errors.UserError` if the file cannot be read.
        """

    @abc.abstractmethod
    def rows(self) -> Iterator[tuple[str, bytes]]:
        """Yields the name of each row's image, and the bytes of an image file; none for null."""

    def files(self) -> Mapping[str, Path]:
        """Returns the files by their names in the source."""
        return {self.path.name: self.path}

    def budget(self) -> Budget:
        """Returns what the files may unpack to."""
        return Budget(self.path, sum(path.stat().st_size for path in self.files().values()))

    def packed(self, scratch_dir: Path) -> ArchiveSource:
        """Returns the source of the images in a tar, which is made unless it is already there."""
        versions = [(name, *version_of(path)) for name, path in self.files().items()]
        num_bytes = sum(size for _, size, _ in versions)
        tar = make_tar(scratch_dir, self.path, versions, self._pack, num_bytes)
        return local_archive(tar, self.path, kind=self.kind)

    def _pack(self, file: IO[bytes], budget: Budget) -> None:
        with (
            bar(desc="unpacking", unit=" images", delay=1.0) as unpacked,
            tarfile.open(fileobj=file, mode="w") as archive,
        ):
            for name, content in self._rows():
                info = tarfile.TarInfo(name)
                info.size = len(content)
                budget.take(ROW_BYTES + info.size)
                archive.addfile(info, io.BytesIO(content))
                # tarfile keeps every member in memory, and none is needed again.
                archive.members.clear()
                unpacked.update()

    def _rows(self) -> Iterator[tuple[str, bytes]]:
        # In a generator, so that an error of writing is not taken for one of reading.
        with self.clear_errors():
            yield from self.rows()

    @contextlib.contextmanager
    def clear_errors(self) -> Iterator[None]:
        """Turns the errors of a damaged or missing file into those of a build."""
        try:
            with errors.clear_read_errors(str(self.path)):
                yield
        except (pa.ArrowException, zipfile.BadZipFile, zlib.error, EOFError, LookupError,
                ValueError, OSError) as error:  # fmt: skip
            raise errors.UserError(
                f"--input {self.path} could not be read as --source {self.kind}: {error}"
            ) from None


def split_in(*names: str) -> str | None:
    """Returns the split in the first of some names that has one, such as in `val_images`."""
    matches = (re.search(SPLIT_NAME, name.lower()) for name in names)
    return next((match[1] for match in matches if match), None)
