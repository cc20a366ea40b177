"""A progress bar that counts images by the files that the workers write."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

from tqdm import tqdm

from pipelines.planning.plan import ShardTask
from pipelines.stores.output import BUILD_DIR, Storage
from tfrecord_io import shards

_LOCAL_SECONDS = 0.5
_REMOTE_SECONDS = 15.0


@contextlib.contextmanager
def progress_bar(
    storage: Storage, tasks: Sequence[ShardTask], num_finished: int, record_stride: int
) -> Iterator[None]:
    """Shows the number of images done, the rate and the time left until the block ends.

    No engine reports images while the pipeline runs, so they are counted in the output folder: a
    finished shard has a sidecar, and a temporary file grows by one record per image, which has
    `record_stride` bytes. An earlier run has finished `num_finished` images.
    """
    total = num_finished + sum(task.num_refs for task in tasks)
    terminal = sys.stderr.isatty()
    stop = threading.Event()
    with tqdm(
        total=total,
        initial=num_finished,
        unit=" images",
        desc="writing",
        # In a log file every refresh is a new line.
        mininterval=0.1 if terminal else 10.0,
        dynamic_ncols=terminal,
        smoothing=0.1,
    ) as bar:

        def refresh() -> None:
            done = num_finished + _count_images(storage, tasks, record_stride)
            bar.update(min(done, total) - bar.n)

        def watch() -> None:
            while not stop.wait(_REMOTE_SECONDS if storage.remote else _LOCAL_SECONDS):
                refresh()

        thread = threading.Thread(target=watch, name="progress", daemon=True)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()
            refresh()


def _count_images(storage: Storage, tasks: Sequence[ShardTask], record_stride: int) -> int:
    names = set(storage.names())
    finished = [task for task in tasks if shards.sidecar_name(task.shard_name) in names]
    done = sum(task.num_refs for task in finished)
    if storage.remote:
        return done
    written = 0
    for path in Path(storage.path(BUILD_DIR)).glob(".*.tfrecord.*.tmp"):
        with contextlib.suppress(FileNotFoundError):
            written += path.stat().st_size
    return done + written // record_stride
