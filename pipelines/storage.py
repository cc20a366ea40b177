"""The files of an output folder, on a local disk or on any file system that Beam knows.

A local file takes its name by a rename. On an object store a rename is a copy, but an object
appears only once it is closed, so there the final name is written at once.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import pyarrow as pa

from tfrecord_io import shards

#: Where a build keeps what is no part of the dataset: plan, lock, temporary and part files.
BUILD_DIR = ".build"


def is_remote(path: str) -> bool:
    """Tells whether a path is a URL such as gs://bucket/folder."""
    return "://" in path


@dataclasses.dataclass(frozen=True)
class Storage:
    """One folder, local or remote.

    Attributes:
        root: the folder's path or URL.
    """

    root: str

    @property
    def remote(self) -> bool:
        return is_remote(self.root)

    def path(self, name: str) -> str:
        """Returns the full path of a file given by its name in this folder."""
        return f"{self.root.rstrip('/')}/{name}"

    def make_folders(self) -> None:
        """Makes the folder and its build folder; an object store needs neither."""
        if not self.remote:
            Path(self.path(BUILD_DIR)).mkdir(parents=True, exist_ok=True)

    def size(self, name: str) -> int | None:
        """Returns a file's size in bytes, or None if it does not exist."""
        if not self.remote:
            try:
                return os.stat(self.path(name)).st_size  # noqa: PTH116
            except FileNotFoundError:
                return None
        from apache_beam.io.filesystems import FileSystems

        matches = FileSystems.match([self.path(name)])[0].metadata_list
        return matches[0].size_in_bytes if matches else None

    def exists(self, name: str) -> bool:
        return self.size(name) is not None

    def read(self, name: str) -> bytes:
        """Returns a file's content.

        Raises:
            FileNotFoundError: if there is none.
        """
        if not self.remote:
            return Path(self.path(name)).read_bytes()
        if not self.exists(name):
            raise FileNotFoundError(self.path(name))
        from apache_beam.io.filesystem import CompressionTypes
        from apache_beam.io.filesystems import FileSystems

        with FileSystems.open(
            self.path(name), compression_type=CompressionTypes.UNCOMPRESSED
        ) as file:
            return file.read()

    @contextlib.contextmanager
    def create(self, name: str) -> Iterator[IO[bytes]]:
        """Opens a file for writing that appears whole, under its name, or not at all."""
        if not self.remote:
            with shards.atomic_write(self.path(name), self.path(BUILD_DIR)) as file:
                yield file
            return
        from apache_beam.io.filesystem import CompressionTypes
        from apache_beam.io.filesystems import FileSystems

        file = FileSystems.create(self.path(name), compression_type=CompressionTypes.UNCOMPRESSED)
        # Not `with`: closing is what makes the object appear, and a failed one must not.
        yield file
        file.close()

    @contextlib.contextmanager
    def open_arrow(self, name: str) -> Iterator[pa.NativeFile]:
        """Opens a file for Arrow, which reads only the parts it needs."""
        if not self.remote:
            with pa.memory_map(self.path(name)) as file:
                yield file
            return
        from apache_beam.io.filesystem import CompressionTypes
        from apache_beam.io.filesystems import FileSystems

        with (
            FileSystems.open(
                self.path(name), compression_type=CompressionTypes.UNCOMPRESSED
            ) as raw,
            pa.PythonFile(raw, mode="r") as file,
        ):
            yield file

    def names(self, folder: str = "") -> list[str]:
        """Returns the names of the files of a folder below this one (this one by default)."""
        prefix = self.path(folder).rstrip("/")
        if not self.remote:
            directory = Path(prefix)
            return sorted(p.name for p in directory.iterdir()) if directory.is_dir() else []
        from apache_beam.io.filesystems import FileSystems

        found = FileSystems.match([prefix + "/*"])[0].metadata_list
        return sorted(entry.path.rsplit("/", 1)[-1] for entry in found)

    def delete(self, names: list[str]) -> None:
        """Deletes files by name; those that do not exist are passed over."""
        if not self.remote:
            for name in names:
                Path(self.path(name)).unlink(missing_ok=True)
            return
        from apache_beam.io.filesystems import FileSystems

        FileSystems.delete([self.path(name) for name in names if self.exists(name)])

    def delete_build_dir(self) -> None:
        """Removes what a finished build no longer needs."""
        if not self.remote:
            shutil.rmtree(self.path(BUILD_DIR), ignore_errors=True)
            return
        self.delete([f"{BUILD_DIR}/{name}" for name in self.names(BUILD_DIR)])
