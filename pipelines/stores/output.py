"""The options of the output, and the files of its folder, on a local disk or on an object store.

A local file is written under a temporary name and then renamed. On an object store a rename is a
copy, but an object appears only when its upload is complete, so it has its final name at once.
"""

from __future__ import annotations

import contextlib
import dataclasses
import re
import shutil
from collections.abc import Callable, Iterable, Iterator
from concurrent import futures
from pathlib import Path
from typing import IO, TypeVar

import pyarrow as pa

from tfrecord_io.stores import remote
from tfrecord_io.stores.ahead import map_ahead
from tfrecord_io.stores.files import atomic_write, make_private_folder, sync_folder
from tfrecord_io.stores.folder import read_file
from tfrecord_io.terminal.address import Address, is_remote
from tfrecord_io.terminal.flags import check, flag

#: Folder for files that are not part of the dataset: plan, lock, temporary files and tables.
BUILD_DIR = ".build"

# Largest number of files waiting to be finished, besides the current one: those of one task.
_MOST_UNFINISHED = 3

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


@dataclasses.dataclass(frozen=True, kw_only=True)
class OutputOptions:
    """Where the dataset goes, and what it may lack or hide.

    Raises:
        ValueError: if a value is wrong.
    """

    output: Address = flag("data/tfrecords", "folder or URL of the dataset", metavar="DIR")
    name: str | None = flag(
        None, "name of the dataset (default: made from the source or the input)", metavar="NAME"
    )
    max_reject_fraction: float = flag(
        0.01, "fail if more than this share of the images cannot be used", least=0, most=1
    )
    anonymize: Path | None = flag(
        None,
        "put no name or path of the input into any output: images and patients get codes, made "
        "with the secret in FILE, which stays outside --output (docs/privacy.md)",
        metavar="FILE",
    )
    overwrite: bool = flag(
        False, "delete the dataset in the output folder, finished or not, and build it anew"
    )

    def __post_init__(self) -> None:
        check(self)
        if not self.output.strip("/"):
            raise ValueError(f"--output must be a folder of its own, received {self.output!r}")
        if self.name is not None and not re.fullmatch(r"[a-z][a-z0-9_]*", self.name):
            raise ValueError(
                f"--name must be lower-case letters, digits and underscores, received {self.name!r}"
            )


@dataclasses.dataclass(frozen=True)
class Storage:
    """One folder, given by its path or URL."""

    root: str

    @property
    def remote(self) -> bool:
        """Whether the folder is on an object store."""
        return is_remote(self.root)

    def path(self, name: str) -> Address:
        """Returns the full path of a file given by its name in this folder."""
        return Address(self.root) / name

    def make_folders(self) -> None:
        """Makes the folder and its build folder, on a disk."""
        if not self.remote:
            make_private_folder(Path(self.path(BUILD_DIR)))
            sync_folder(Path(self.root).absolute().parent)
            self.sync_names()

    def size(self, name: str) -> int | None:
        """Returns a file's size in bytes, or None if it does not exist."""
        path = self.path(name)
        try:
            return remote.describe(path).size if self.remote else Path(path).stat().st_size
        except FileNotFoundError:
            return None

    def exists(self, name: str) -> bool:
        """Returns whether there is such a file."""
        return self.size(name) is not None

    def read(self, name: str) -> bytes:
        """Returns a file's content; raises FileNotFoundError if there is no such file."""
        return read_file(self.root, name)

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

    def open_arrow(self, name: str) -> pa.NativeFile:
        """Opens a file for a `with` block; Arrow reads only the parts that it needs."""
        if not self.remote:
            return pa.memory_map(self.path(name))
        return pa.PythonFile(remote.describe(self.path(name)).open(), mode="r")

    def map(self, read: Callable[[_Item], _Result], items: Iterable[_Item]) -> Iterator[_Result]:
        """Returns the results of `read` in order; on an object store, threads read ahead."""
        num_threads = remote.NUM_CONNECTIONS if self.remote else 0
        return map_ahead(read, items, 2 * num_threads, num_threads=num_threads)

    def names(self, folder: str = "") -> list[str]:
        """Returns the names of the files of a folder below this one (this one by default)."""
        prefix = self.path(folder)
        if not self.remote:
            directory = Path(prefix)
            return sorted(p.name for p in directory.iterdir()) if directory.is_dir() else []
        files = remote.list_files(prefix, recursive=False)
        return sorted(file.url.rsplit("/", 1)[-1] for file in files)

    def delete(self, names: list[str]) -> None:
        """Deletes files by name; ignores those that do not exist."""
        if self.remote:
            remote.delete(map(self.path, names))
        else:
            for name in names:
                Path(self.path(name)).unlink(missing_ok=True)

    def delete_build_dir(self) -> None:
        """Removes the build folder, which a finished build no longer needs."""
        if self.remote:
            self.delete([f"{BUILD_DIR}/{name}" for name in self.names(BUILD_DIR)])
            return
        self.sync_names()  # the plan must not go before the manifest has its name on the disk
        shutil.rmtree(self.path(BUILD_DIR), ignore_errors=True)


class WriteBehind:
    """Finishes files in a thread, which waits for the disk or uploads to the store.

    Files appear in the order in which they were written. After one failure, later files are
    discarded, so no sidecar outlives its shard.
    """

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._thread = futures.ThreadPoolExecutor(1, thread_name_prefix="write-behind")
        self._unfinished: list[futures.Future[None]] = []

    @contextlib.contextmanager
    def create(self, name: str) -> Iterator[IO[bytes]]:
        """Opens a file for writing, which appears later, and only when it is complete.

        Raises:
            OSError, errors.BuildError: if an earlier file could not be finished.
        """
        with contextlib.ExitStack() as block:
            yield block.enter_context(self._storage.create(name))
            earlier = self._unfinished[-1:]
            self._unfinished.append(self._thread.submit(_finish, block.pop_all(), earlier))
        while len(self._unfinished) > _MOST_UNFINISHED:
            self._unfinished[0].result()
            del self._unfinished[0]

    def wait(self) -> None:
        """Waits until every file is finished; raises the error of one that could not be."""
        unfinished, self._unfinished = self._unfinished, []
        futures.wait(unfinished)
        for each in unfinished:
            each.result()

    def close(self) -> None:
        """Waits for the thread to finish its files, and ends it."""
        self._thread.shutdown()


def _finish(block: contextlib.ExitStack, earlier: list[futures.Future[None]]) -> None:
    """Ends the block of a file, with the error of an earlier file if that failed."""
    with block:
        for each in earlier:
            each.result()
