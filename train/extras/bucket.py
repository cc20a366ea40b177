"""Runs in a bucket: a run is trained in a copy, which is uploaded.

A store has no lock, but an object appears only when it is complete. So the files that prove others
are uploaded last: the checkpoint, from which a run goes on, and then `metrics.json`, whose presence
means that the run is complete. An object replaces only the version of it that this process has
seen. So of two trainers in one folder, the one that saves second is refused.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tfrecord_io.stores import remote, replace
from tfrecord_io.stores.folder import Folder
from tfrecord_io.terminal.address import Address, is_remote
from tfrecord_io.terminal.errors import StoreError, UserError
from train.machine import console
from train.machine.places import OWN_FILES, RunFolder, open_local

# Uploaded after all other files, in this order. The first one completes an export.
_LAST = ("preprocessing.json", "checkpoint.npz", "metrics.json")


class Mirror:
    """The folder of a run at a URL, and `folder`, a copy that is empty until `download`."""

    def __init__(self, url: Address) -> None:
        self.url, self._store = url, Folder(url)
        self.folder = Path(tempfile.mkdtemp(prefix="run-")) / url.rstrip("/").rpartition("/")[2]
        # Of each file in the copy, as it is at the URL: a digest, and its version.
        self._seen: dict[str, tuple[bytes, Any]] = {}

    def names(self) -> list[str]:
        return list(filter(_is_mirrored, self._store.names(recursive=True)))

    def download(self, names: Sequence[str]) -> None:
        """Copies files from the URL."""
        read = self._store.map(remote.read_version, map(self._store.path, names))
        for name, (content, version) in zip(names, read, strict=True):
            path = self.folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
            self._seen[name] = hashlib.sha256(content).digest(), version

    def upload(self, folder: Path, replaces: bool = False) -> None:
        """Uploads what is new in a folder of the copy, and deletes what is gone.

        If the run `replaces` the one at the URL, all of it is uploaded to wait there first. So a
        process that is killed in between leaves nothing that the next one cannot complete.

        Raises:
            UserError: if another process has changed one of these files.
        """
        if not replaces:
            self._upload(folder)
            return
        place = replace.waiting(self._store)
        for path in filter(Path.is_file, self.folder.rglob("*")):
            if _is_mirrored(name := path.relative_to(self.folder).as_posix()):
                place.write(name, path.read_bytes())
        replace.promise(self._store)
        try:
            self._upload(self.folder)
        except UserError:
            replace.forget(self._store)  # the folder is the other's
            raise
        replace.forget(self._store)

    def _upload(self, folder: Path) -> None:
        gone = [name for name in self._seen if not (self.folder / name).exists()]
        for name in sorted(gone, key=_rank, reverse=True):
            self._store.delete([name])
            del self._seen[name]
        paths = filter(Path.is_file, folder.rglob("*"))
        names = (path.relative_to(self.folder).as_posix() for path in paths)
        for name in sorted(filter(_is_mirrored, names), key=_rank):
            content = (self.folder / name).read_bytes()
            known, version = self._seen.get(name, (b"", None))
            if known == (digest := hashlib.sha256(content).digest()):
                continue
            try:
                version = remote.replace(self._store.path(name), content, version)
            except StoreError as error:
                if error.cause != "changed":
                    raise
                raise UserError(
                    f"another process is training in {self.url}: it has changed {name}. Wait until "
                    "it ends and run the same command again, or choose another --workdir"
                ) from None
            self._seen[name] = digest, version

    def clear(self) -> None:
        """Removes the copy, but for what stays on this machine."""
        root = self.folder.parent
        for path in sorted([root, *root.rglob("*")], reverse=True):
            if path.is_dir():
                with contextlib.suppress(OSError):  # it is not empty
                    path.rmdir()
            elif _is_mirrored(path.relative_to(root).as_posix()):
                path.unlink()


@contextlib.contextmanager
def working_folder(workdir: str | os.PathLike[str]) -> Iterator[RunFolder]:
    """Yields the folder to train in: `workdir` or, if that is a URL, a copy of it.

    Raises:
        UserError: if there are files at the URL that are not those of a run.
    """
    if not is_remote(workdir):
        yield RunFolder.at(workdir)
        return
    mirror = Mirror(Address(workdir))
    with console.cleaned_up(mirror.clear):
        replace.settle(Folder(mirror.url), OWN_FILES)
        if (names := mirror.names()) and "config.json" not in names:
            raise UserError(f"{mirror.url} is not empty and not a run; use another --workdir")
        mirror.download(names)
        path = mirror.folder
        print(f"note: TensorBoard's logs stay on this machine, in {path / 'tensorboard'}")
        yield RunFolder(path=path, home=path, address=mirror.url, saved=mirror.upload)


@functools.cache
def open_run(run: str) -> Path:
    """Returns the folder of a finished run; of a URL, a copy that this process removes at its end.

    Raises:
        UserError: if the URL has no finished run, or the run in the folder is being replaced.
    """
    if not is_remote(run):
        return open_local(run)
    mirror = Mirror(Address(run))
    for ends in (atexit.register, console.cleanups.append):
        ends(functools.partial(shutil.rmtree, mirror.folder.parent))
    # Facts, tables, the exported network and the kept weights; a training has more.
    wanted = (".json", ".parquet", ".keras", "best.npz", "predictions.npz")
    mirror.download([name for name in mirror.names() if name.endswith(wanted)])
    if not any(mirror.folder.rglob(_LAST[0])):
        raise UserError(
            f"{mirror.url} is not a finished run: it has no export/{_LAST[0]}; train it to its end"
        )
    return mirror.folder


def _is_mirrored(name: str) -> bool:
    parts = name.split("/")
    return "tensorboard" not in parts and not any(part[:1] == "." for part in parts)


def _rank(name: str) -> tuple[int, str]:
    """Returns the place of a file in the order of uploads."""
    last = name.rpartition("/")[2]
    return _LAST.index(last) + 1 if last in _LAST else 0, name
