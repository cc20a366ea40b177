"""Writes a tree of image files once, for a source that makes its images itself.

The tree is then listed as a folder, so sizes and times of its files identify it.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pipelines import errors
from tfrecord_io.stores import file_lock
from tfrecord_io.stores.ahead import map_ahead
from tfrecord_io.stores.files import read_json

COMPLETE_MARKER = ".complete.json"
#: Modification time of every file: 2018-01-01T00:00:00Z.
FILE_MTIME = 1_514_764_800


def write_once(
    directory: Path,
    settings: Mapping[str, Any],
    names: Sequence[str],
    make: Callable[[int], bytes],
    progress: Callable[[int], object] = lambda written: None,
) -> None:
    """Writes files with constant modification times into a folder.

    They are written into another folder, which is renamed when it is complete. A complete tree is
    kept; one with other settings, or with missing or changed files, is written again.

    Args:
        directory: the folder, which only this function writes.
        settings: JSON values, everything that decides the files.
        names: paths of the files in the folder.
        make: returns the content of the file of that place in `names`; called by several threads.
        progress: called with 1 for each file.

    Raises:
        errors.UserError: if another process is writing into the folder, or it exists and this
            function did not write it.
        errors.BuildError: if a file cannot be written.
    """
    if read_json(directory / COMPLETE_MARKER) == settings:
        times = [path.stat().st_mtime for path in directory.rglob("*") if path.is_file()]
        # The marker has a time of its own.
        if len(times) == len(names) + 1 and times.count(FILE_MTIME) == len(names):
            return
    lock = directory.with_name(f".{directory.name}.lock")
    with (
        errors.clear_write_errors(f"{directory} (--download_dir chooses another folder)"),
        file_lock.held(lock, f"writing the images of {directory}"),
    ):
        if directory.exists() and not (directory / COMPLETE_MARKER).exists():
            raise errors.UserError(
                f"{directory} exists and was not written by this program (no {COMPLETE_MARKER} in "
                "it); choose another --download_dir, or delete that folder if it is not needed"
            )
        writing = directory.with_name(f".{directory.name}.writing")
        shutil.rmtree(writing, ignore_errors=True)
        for folder in {(writing / name).parent for name in names}:
            folder.mkdir(parents=True)

        def write(place: int) -> None:
            path = writing / names[place]
            path.write_bytes(make(place))
            os.utime(path, (FILE_MTIME, FILE_MTIME))

        # NumPy and Pillow let other threads run while they work.
        num_threads = len(os.sched_getaffinity(0))
        for _ in map_ahead(write, range(len(names)), 2 * num_threads, num_threads=num_threads):
            progress(1)
        (writing / COMPLETE_MARKER).write_text(json.dumps(settings, indent=2) + "\n")
        if directory.exists():
            shutil.rmtree(directory)
        writing.rename(directory)
