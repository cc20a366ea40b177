"""One folder, on a disk by `pathlib` or, by URL, on a store by `remote` and obstore.

A local file is written under a temporary name and then renamed. On a store a rename is a copy, but
an object appears only when its upload is complete, so it has its final name at once.
"""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path, PurePath
from typing import IO, TypeVar

from tfrecord_io.stores import remote
from tfrecord_io.stores.ahead import map_ahead
from tfrecord_io.stores.files import atomic_write, sync_folder
from tfrecord_io.stores.remote import StoredFile
from tfrecord_io.terminal.address import Address, is_remote

#: Folder for files that are not part of a dataset: plan, lock, temporary files and tables.
BUILD_DIR = ".build"

#: Files that are read at once: a store's answers are mostly waited for.
NUM_THREADS = 16

_BUFFER_LENGTH = 1 << 20

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


class Folder(os.PathLike[str]):
    """A folder on a disk or a store; every function that reads a dataset takes one, or its path.

    Reads from a store raise what those of `remote` raise.

    Attributes:
        root: the path or URL.
        cache_dir: where readers keep what a URL gives; None for the user's cache folder.
        cache_gb: largest size of that cache, in 10^9 bytes; None for half of the free space.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        cache_dir: str | os.PathLike[str] | None = None,
        cache_gb: float | None = None,
    ) -> None:
        """Makes a folder of a path, a URL, or another one, whose cache holds if none is given."""
        if isinstance(directory, Folder):
            cache_dir = directory.cache_dir if cache_dir is None else cache_dir
            cache_gb = directory.cache_gb if cache_gb is None else cache_gb
        self.root, self.cache_dir, self.cache_gb = Address(directory), cache_dir, cache_gb

    def __fspath__(self) -> Address:
        return self.root

    __str__ = __fspath__

    @property
    def remote(self) -> bool:
        """Whether the folder is on a store."""
        return is_remote(self.root)

    def path(self, name: str) -> Address:
        """Returns the full path or URL of a file given by its name in this folder."""
        return self.root / name

    def size(self, name: str) -> int | None:
        """Returns a file's size in bytes, or None if it does not exist."""
        path = self.path(name)
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            return remote.describe(path).size if self.remote else Path(path).stat().st_size
        return None

    def exists(self, name: str) -> bool:
        """Returns whether there is such a file."""
        return self.size(name) is not None

    def open(self, name: str) -> io.BufferedReader:
        """Opens a file for reading; on a store, parts are fetched when they are read."""
        path = self.path(name)
        if not self.remote:
            return open(path, "rb")  # noqa: PTH123 - the path is a string here
        return io.BufferedReader(remote.describe(path).open(), _BUFFER_LENGTH)

    def read(self, name: str) -> bytes:
        """Returns a file's content.

        Raises:
            FileNotFoundError: if there is no such file.
        """
        path = self.path(name)
        return remote.read_version(path)[0] if self.remote else Path(path).read_bytes()

    def shards(self) -> dict[str, StoredFile]:
        """Describes the shards by name, in one listing; on a store, also its other files."""
        if self.remote:
            found = remote.list_files(self.root, recursive=False)
        else:
            paths = Path(self.root).glob("*.tfrecord")
            found = [StoredFile(path.as_posix(), path.stat().st_size) for path in paths]
        return {file.url.rpartition("/")[2]: file for file in found}

    def map(self, read: Callable[[_Item], _Result], items: Iterable[_Item]) -> Iterator[_Result]:
        """Returns the results of `read` in order; on a store, threads read ahead."""
        num_threads = NUM_THREADS if self.remote else 0
        return map_ahead(read, items, 2 * num_threads, num_threads=num_threads)

    def names(self, folder: str = "", *, recursive: bool = False) -> list[str]:
        """Returns the names of the files of a folder below this one (this one by default).

        With `recursive`, these are also `a/b` and the like, of subfolders.
        """
        top = self.path(folder)
        if self.remote:
            files = remote.list_files(top, recursive=recursive)
            return sorted(file.url[len(top.rstrip("/")) + 1 :] for file in files)
        if not Path(top).is_dir():
            return []
        paths = Path(top).rglob("*") if recursive else Path(top).iterdir()
        files = (path for path in paths if path.is_symlink() or path.is_file())
        return sorted(path.relative_to(top).as_posix() for path in files)

    def move(self, names: Sequence[str], to: Folder) -> None:
        """Moves files to the same names in a folder on the same disk or store, and syncs them."""
        if self.remote:
            list(self.map(lambda name: remote.copy(self.path(name), to.path(name)), names))
            self.delete(names)
            return
        for name in names:
            path = Path(to.path(name))
            path.parent.mkdir(parents=True, exist_ok=True)
            Path(self.path(name)).replace(path)
        for parent in {parent for name in names for parent in PurePath(name).parents}:
            sync_folder(to.path(str(parent)))

    @contextlib.contextmanager
    def create(self, name: str) -> Iterator[IO[bytes]]:
        """Opens a file for writing, which appears only when the block ends without an error.

        A .json file promises that other files exist: a sidecar its shard, the manifest the dataset.
        So the names of all files created before it are on the disk before its own.
        """
        path = self.path(name)
        opened = remote.create(path) if self.remote else atomic_write(path, self.path(BUILD_DIR))
        with opened as file:
            yield file
            if name.endswith(".json"):
                self.sync_names()

    def write(self, name: str, content: bytes) -> None:
        """Writes a whole file; see `create`."""
        with self.create(name) as file:
            file.write(content)

    def sync_names(self) -> None:
        """Waits until the names of all files are on the disk, so that no power cut undoes one."""
        if not self.remote:
            sync_folder(self.path(BUILD_DIR))
            sync_folder(self.root)

    def make_build_dir(self) -> None:
        """Makes the folder and its build folder, on a disk.

        The build folder is its owner's alone, unless others may write to the folder itself, as
        workers of a cluster that run as another user must: then it has the mode of the folder.
        """
        if self.remote:
            return
        folder, build_dir = Path(self.root), Path(self.path(BUILD_DIR))
        mode = stat.S_IMODE(folder.stat().st_mode) if folder.is_dir() else 0
        if not build_dir.is_dir():
            build_dir.mkdir(0o700, parents=True, exist_ok=True)
            if mode & (stat.S_IWGRP | stat.S_IWOTH):
                build_dir.chmod(mode)
        sync_folder(folder.absolute().parent)
        self.sync_names()

    def delete(self, names: Iterable[str]) -> None:
        """Deletes files by name; ignores those that do not exist."""
        if self.remote:
            list(self.map(remote.delete, map(self.path, names)))
        else:
            for name in names:
                Path(self.path(name)).unlink(missing_ok=True)

    def clean_build_dir(self, ending: str = "") -> None:
        """Deletes the files of the build folder with this end of their names; by default all of it.

        A finished build no longer needs it.
        """
        if ending or self.remote:
            names = self.names(BUILD_DIR)
            self.delete([f"{BUILD_DIR}/{name}" for name in names if name.endswith(ending)])
            return
        self.sync_names()  # the plan must not go before the manifest has its name on the disk
        shutil.rmtree(self.path(BUILD_DIR), ignore_errors=True)
