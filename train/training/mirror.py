"""A run in a bucket: a local copy of its folder, whose files are uploaded when they are new.

A store has no lock, but an object appears only when it is complete. So the files that others depend
on are uploaded last: the checkpoint, from which a run goes on, and then `metrics.json`, whose
presence means that the run is complete. A kill at any moment leaves the state before or after.

An object replaces only the version of it that this process has seen. So of two trainers in one
folder, the one that saves second is refused.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from tfrecord_io.stores import remote
from tfrecord_io.stores.folder import Folder
from tfrecord_io.terminal.address import Address, is_remote
from tfrecord_io.terminal.errors import ChangedError
from train.machine.errors import ConfigError

# Uploaded after all other files, in this order. The first of them completes the export.
_LAST = ("preprocessing.json", "checkpoint.npz", "metrics.json")

# What stays on this machine, because it grows with each step.
_LOCAL = ("tensorboard", "profile")

# What `opened` copies: facts, tables, the exported network and its weights.
_OF_A_FINISHED_RUN = (".json", ".parquet", ".keras", "best.npz")


class Mirror:
    """The folder of a run at a URL, and its copy on this machine.

    Attributes:
        url: of the folder.
        folder: the copy.
    """

    def __init__(self, url: Address, folder: Path) -> None:
        self.url, self.folder, self._store = url, folder, Folder(url)
        # Of each file at the URL: a digest of its content, and its version.
        self._seen: dict[str, tuple[bytes, remote.Version]] = {}

    def address(self, folder: Path) -> Address:
        """Returns the URL of a folder of the copy."""
        name = folder.relative_to(self.folder).as_posix()
        return self.url if name == "." else self.url / name

    def download(self) -> None:
        """Fills the copy.

        Raises:
            ConfigError: if there are files at the URL that are not those of a run.
        """
        names = _names_at(self._store)
        if names and "config.json" not in names:
            raise ConfigError(
                f"{self.url} is not empty and has no config.json: it is not a run folder. "
                "Use another --workdir"
            )
        read = self._store.map(remote.read_version, map(self._store.path, names))
        for name, (content, version) in zip(names, read, strict=True):
            _write(self.folder / name, content)
            self._seen[name] = _digest(content), version

    def upload(self, folder: Path) -> None:
        """Uploads what is new in a folder of the copy, and deletes what is gone.

        Raises:
            ConfigError: if another process has changed one of these files.
        """
        here = {path.relative_to(self.folder).as_posix() for path in folder.rglob("*")}
        here = {name for name in here if _is_mirrored(name) and (self.folder / name).is_file()}
        before = [name for name in self._seen if (self.folder / name).is_relative_to(folder)]
        for name in sorted(set(before) - here, key=_rank, reverse=True):
            self._store.delete([name])
            del self._seen[name]
        for name in sorted(here, key=_rank):
            content = (self.folder / name).read_bytes()
            digest, version = self._seen.get(name, (b"", None))
            if digest == (new := _digest(content)):
                continue
            try:
                version = remote.replace(self._store.path(name), content, version)
            except ChangedError:
                raise ConfigError(
                    f"another process is training in {self.url}: it has changed {name}. This one "
                    "stops, and its steps since the last checkpoint are lost; wait until the other "
                    "one ends and run the same command again, or choose another --workdir"
                ) from None
            self._seen[name] = new, version

    def clear(self) -> None:
        """Removes the copy, but for what was not uploaded."""
        root = self.folder.parent
        for path in sorted([root, *root.rglob("*")], reverse=True):
            if path.is_dir():
                with contextlib.suppress(OSError):  # it is not empty
                    path.rmdir()
            elif _is_mirrored(path.relative_to(self.folder).as_posix()):
                path.unlink()


@contextlib.contextmanager
def local_copy(workdir: str | os.PathLike[str]) -> Iterator[tuple[Path, Mirror | None]]:
    """Yields the local folder of a run and, if it is the copy of one at a URL, its mirror."""
    if not is_remote(workdir):
        yield Path(workdir), None
        return
    url = Address(os.fspath(workdir).rstrip("/"))
    # Not removed: it has TensorBoard's logs.
    folder = Path(tempfile.mkdtemp(prefix="run-")) / PurePosixPath(url).name
    mirror = Mirror(url, folder)
    try:
        mirror.download()
        yield folder, mirror
    finally:
        mirror.clear()


@functools.cache
def opened(run: str) -> Path:
    """Returns the folder of a finished run; for a URL, a copy that is removed at the end.

    The copy lacks what only training needs.

    Raises:
        ConfigError: if there is no finished run at the URL.
    """
    if not is_remote(run):
        return Path(run)
    store = Folder(run)
    names = _names_at(store)
    if not any(PurePosixPath(name).name == _LAST[0] for name in names):
        raise ConfigError(
            f"{store.root} is not a finished run: it has no export/{_LAST[0]}; give the URL that "
            "was the --workdir of a training, and run that to its end"
        )
    folder = Path(tempfile.mkdtemp(prefix="run-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    wanted = [name for name in names if name.endswith(_OF_A_FINISHED_RUN)]
    for name, content in zip(wanted, store.map(store.read, wanted), strict=True):
        _write(folder / name, content)
    return folder


def _names_at(store: Folder) -> list[str]:
    """Returns the names of the files of a run at a URL, with those in its subfolders."""
    root = f"{store.root.rstrip('/')}/"
    files = remote.list_files(store.root, recursive=True)
    return [name for file in files if _is_mirrored(name := file.url.removeprefix(root))]


def _is_mirrored(name: str) -> bool:
    return not any(part in _LOCAL or part.startswith(".") for part in name.split("/"))


def _rank(name: str) -> tuple[int, str]:
    """Returns the place of a file in the order of uploads."""
    last = PurePosixPath(name).name
    return _LAST.index(last) + 1 if last in _LAST else 0, name


def _digest(content: bytes) -> bytes:
    return hashlib.blake2b(content).digest()


def _write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
