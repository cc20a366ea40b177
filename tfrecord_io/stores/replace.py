"""Replaces what a folder holds, so that the old or the new content is whole whatever happens.

One of the two waits in a hidden subfolder. If a list is there, the files in it are the content of
the folder: those that wait go to their places, and all other files that the tool wrote are
removed. Without a list, what waits is not needed. So one file decides, which appears or goes at
once, and `settle` does the rest, also for a process that was killed in between.

Where the first files of the new content are few, they wait (`waiting`, `take`): the plan of a
build, and the first checkpoint of a run on a store, where a rename is a copy. A run on a disk
writes to its final place from the start, so its old content waits (`set_aside`, `forget`).
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
from tfrecord_io.terminal.errors import UserError

_FOLDER, _LIST = ".replaced", "list.json"
#: Files that promise that the others are there, so they go first.
_PROOFS = ("manifest.json", "metrics.json")


def waiting(folder: Folder) -> Folder:
    """Returns the folder, now empty, in which new content waits for `take`."""
    aside = Folder(folder.path(_FOLDER))
    _drop(aside)
    aside.make_build_dir()
    return aside


def is_waiting(folder: Folder) -> bool:
    """Returns whether this is a folder that `waiting` has returned."""
    return PurePath(folder.root).name == _FOLDER


def promise(folder: Folder) -> None:
    """From now on, `settle` replaces the content by what waits."""
    aside = Folder(folder.path(_FOLDER))
    _write_list(aside, aside.tree())


def take(folder: Folder, own: re.Pattern[str]) -> None:
    """Replaces the files whose names match `own` by those that wait."""
    promise(folder)
    settle(folder, own)


def set_aside(folder: Folder, own: re.Pattern[str]) -> None:
    """Has the files whose names match `own` wait; `settle` brings them back."""
    aside, names = waiting(folder), _own_names(folder, own)
    _write_list(aside, names)
    folder.move(names, aside)
    _prune(folder, names)


def forget(folder: Folder) -> bool:
    """Removes what waits; returns whether there was something that `settle` would have used."""
    aside = Folder(folder.path(_FOLDER))
    if not aside.exists(_LIST):
        return False
    aside.delete([_LIST])
    _drop(aside)
    return True


def settle(folder: Folder, own: re.Pattern[str]) -> None:
    """Completes or undoes what a process has begun, see above; may be repeated at any time."""
    aside = Folder(folder.path(_FOLDER))
    if aside.exists(_LIST):
        listed = set(json.loads(aside.read(_LIST)))
        aside.move(sorted(listed.intersection(aside.tree())), folder)
        others = sorted(set(_own_names(folder, own)) - listed)
        folder.delete(name for name in others if name.endswith(_PROOFS))
        folder.delete(others)
        _prune(folder, others)
        aside.delete([_LIST])
    _drop(aside)


def require_settled(folder: Folder) -> None:
    """Raises a `UserError` if a process that replaces this run has not ended, or was killed."""
    if Folder(folder.path(_FOLDER)).exists(_LIST):
        raise UserError(
            f"the run in {folder.root} is being replaced, or that was interrupted. Wait for the "
            "first checkpoint of the new run; or repeat the `train` command of either, which "
            "settles which run is there"
        )


def _write_list(aside: Folder, names: list[str]) -> None:
    aside.write(_LIST, json.dumps(names).encode())
    aside.sync_names()  # before anything else changes


def _own_names(folder: Folder, own: re.Pattern[str]) -> list[str]:
    return [name for name in folder.tree() if own.fullmatch(name)]


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


def _drop(aside: Folder) -> None:
    if aside.remote:
        aside.delete(aside.tree())
    else:
        shutil.rmtree(aside.root, ignore_errors=True)
