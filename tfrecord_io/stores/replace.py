"""Replaces what a `Folder` holds, so that the old or the new content is whole whatever happens.

One of the two waits in a hidden subfolder. If a list is there, the files in it are the content of
the folder: those that wait go to their places, and all other files that the tool wrote are
removed. Without a list, what waits is not the content. So one file decides, which appears or goes
at once, and `complete` does the rest, also for a process that was killed in between.

New content waits until it is whole (`waiting`, `promise`): a dataset, and the first checkpoint of a
run on a store. A run on a disk writes to its final place from the start, so its old content waits
(`set_aside`, `forget`).
"""

from __future__ import annotations

import contextlib
import json
import re
import shutil
from collections.abc import Collection
from pathlib import Path, PurePath

from tfrecord_io.stores.files import sync_folder
from tfrecord_io.stores.folder import Folder

# The tool's own name, because what is in the folder is removed.
_FOLDER, _LIST = ".scan-tfrecords", "list.json"
#: Files that promise that the others are there, so they go first and come last.
_PROOFS = ("manifest.json", "metrics.json")


def beside(folder: Folder) -> Folder:
    """Returns the folder in which content waits, as it is."""
    return Folder(folder.path(_FOLDER))


def waiting(folder: Folder) -> Folder:
    """Returns the folder, now empty, in which new content waits for `complete`."""
    aside = beside(folder)
    drop(folder)
    if not aside.remote:
        Path(aside.root).mkdir()
        shutil.copymode(folder.root, aside.root)  # whoever may write there may write here
    aside.make_build_dir()
    return aside


def promise(
    folder: Folder, names: Collection[str] | None = None, old: Collection[str] | None = None
) -> None:
    """From now on, `complete` replaces the content by the files `names`, by default all that wait.

    `old` are the names of the files that they replace; by default all that `own` matches.
    """
    aside = beside(folder)
    new = aside.names(recursive=True) if names is None else sorted(names)
    content = {"new": new, "old": None if old is None else sorted(old)}
    aside.write(_LIST, json.dumps(content).encode())
    aside.sync_names()  # before anything else changes


def set_aside(folder: Folder, own: re.Pattern[str]) -> None:
    """Has the files whose names match `own` wait; `complete` brings them back."""
    aside, names = waiting(folder), list(filter(own.fullmatch, folder.names(recursive=True)))
    promise(folder, names)
    folder.move(names, aside)
    _prune(folder, names)


def forget(folder: Folder) -> bool:
    """Removes what waits; returns whether there was something that `complete` would have used."""
    if is_there := is_under_way(folder):
        beside(folder).delete([_LIST])
        drop(folder)
    return is_there


def complete(folder: Folder, own: re.Pattern[str]) -> None:
    """Completes what a process has begun with a list, see above; may be repeated at any time."""
    if not is_under_way(folder):
        return
    aside = beside(folder)
    content = json.loads(aside.read(_LIST))
    listed, names = set(content["new"]), folder.names(recursive=True)
    old = filter(own.fullmatch, names) if content["old"] is None else content["old"]
    gone = set(names).intersection(old) - listed
    coming = sorted(listed.intersection(aside.names(recursive=True)))
    folder.delete(name for name in gone.union(coming) if name.endswith(_PROOFS))
    aside.move([name for name in coming if not name.endswith(_PROOFS)], folder)
    folder.delete(gone)
    _prune(folder, gone)
    aside.move([name for name in coming if name.endswith(_PROOFS)], folder)
    aside.delete([_LIST])
    drop(folder)


def settle(folder: Folder, own: re.Pattern[str]) -> None:
    """Completes or undoes what a process has begun; may be repeated at any time."""
    complete(folder, own)
    drop(folder)


def drop(folder: Folder) -> None:
    """Removes what waits."""
    aside = beside(folder)
    if aside.remote:
        aside.delete(aside.names(recursive=True))
    else:
        shutil.rmtree(aside.root, ignore_errors=True)


def is_under_way(folder: Folder) -> bool:
    """Returns whether a process has begun with a list, see above, and `complete` is still to do."""
    return beside(folder).exists(_LIST)


def _prune(folder: Folder, names: Collection[str]) -> None:
    """Removes the subfolders that are now empty, and waits until that is on the disk."""
    if folder.remote:
        return
    for parent in sorted({parent for name in names for parent in PurePath(name).parents})[::-1]:
        path = Path(folder.path(str(parent)))
        if parent.name:
            with contextlib.suppress(OSError):  # it is not empty
                path.rmdir()
        if path.is_dir():
            sync_folder(path)
