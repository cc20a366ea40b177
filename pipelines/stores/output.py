"""The options of the output, and a writer that does not wait until its files are finished."""

from __future__ import annotations

import contextlib
import dataclasses
import re
from collections.abc import Iterator
from concurrent import futures
from typing import IO

from tfrecord_io.stores.folder import Folder
from tfrecord_io.terminal.address import Address
from tfrecord_io.terminal.flags import check, flag

# Largest number of files waiting to be finished, besides the current one: those of one task.
_MOST_UNFINISHED = 3


@dataclasses.dataclass(frozen=True, kw_only=True)
class OutputOptions:
    """Where the dataset goes, and what it may lack.

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
    overwrite: bool = flag(
        False,
        "replace the dataset in the output folder, finished or not, when the new one is finished",
    )

    def __post_init__(self) -> None:
        check(self)
        if not self.output.strip("/"):
            raise ValueError(f"--output must be a folder of its own, received {self.output!r}")
        if self.name is not None and not re.fullmatch(r"[a-z][a-z0-9_]*", self.name):
            raise ValueError(
                f"--name must be lower-case letters, digits and underscores, received {self.name!r}"
            )


class WriteBehind:
    """Finishes files in a thread, which waits for the disk or uploads to the store.

    Files appear in the order in which they were written. After one failure, later files are
    discarded, so no sidecar outlives its shard.
    """

    def __init__(self, folder: Folder) -> None:
        self._folder = folder
        self._thread = futures.ThreadPoolExecutor(1, thread_name_prefix="write-behind")
        self._unfinished: list[futures.Future[None]] = []

    @contextlib.contextmanager
    def create(self, name: str) -> Iterator[IO[bytes]]:
        """Opens a file for writing, which appears later, and only when it is complete.

        Raises:
            OSError, errors.BuildError: if an earlier file could not be finished.
        """
        with contextlib.ExitStack() as block:
            yield block.enter_context(self._folder.create(name))
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
