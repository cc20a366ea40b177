"""What a kill or a power cut may leave of a folder, the latter by what a program has synced.

A file's content is on the disk once fsync has returned for it, a folder's names once fsync has
returned for the folder. Any later change may be there or not; content that was not synced may be
cut off or zeros. Real file systems keep more order than that.
"""

import contextlib
import functools
import os
import random
import shutil
import stat
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest import mock

from builds import files_of


@contextlib.contextmanager
def _changes(watch: Callable[[str, functools.partial[object]], object]) -> Iterator[None]:
    """Has a function called with the name of each change to a disk, and the change to make."""

    def watched(name: str) -> Callable[..., object]:
        real = getattr(os, name)
        return lambda *words, **more: watch(name, functools.partial(real, *words, **more))

    with contextlib.ExitStack() as patches:
        for name in ("replace", "unlink", "rmdir", "fsync"):
            patches.enter_context(mock.patch.object(os, name, watched(name)))
        yield


def killed_anywhere(folder: Path, copies: Path, do: Callable[[], object]) -> Iterator[None]:
    """Calls a function; then puts a folder, in turn, into each state in which a kill leaves it.

    These are the states before the changes that the function makes to the disk, each once, copied
    into another folder meanwhile.
    """
    states: list[dict[str, bytes]] = []

    def keep(_: str, change: Callable[[], object]) -> object:
        if (state := files_of(folder)) not in states:
            shutil.copytree(folder, copies / str(len(states)))
            states.append(state)
        return change()

    with _changes(keep):
        do()
    for number in range(len(states)):
        shutil.rmtree(folder)
        (copies / str(number)).rename(folder)
        yield


class Disk:
    """Watches this process's syncs, renames and deletions below a folder.

    What is there at the start is on the disk.

    Attributes:
        folder: the folder, which is there after every cut.
    """

    def __init__(self, folder: Path, rng: random.Random) -> None:
        self.folder = folder
        self._rng = rng
        self._lock = threading.RLock()
        self._contents: dict[int, bytes] = {}
        self._names: dict[Path, dict[str, int]] = {}
        self._kept: list[int] = []
        for path in (folder, *folder.rglob("*")):
            descriptor = os.open(path, os.O_RDONLY)
            self._note(descriptor)
            os.close(descriptor)

    def close(self) -> None:
        for descriptor in self._kept:
            os.close(descriptor)

    @contextlib.contextmanager
    def watched(self, moment: Callable[[], None]) -> Iterator[None]:
        """Calls a function before and after each change, until the block ends."""

        def watch(name: str, change: functools.partial[object]) -> object:
            with self._lock:
                moment()
                result = change()
                if name == "fsync":
                    self._note(*change.args)
                moment()
            return result

        with _changes(watch):
            yield

    def _note(self, descriptor: int) -> None:
        found = os.fstat(descriptor)
        path = Path(f"/proc/self/fd/{descriptor}").readlink()
        if stat.S_ISDIR(found.st_mode):
            self._names[path] = _names(path)
        elif found.st_ino not in self._contents:
            # Held open, so that no other file gets its number.
            self._kept.append(os.dup(descriptor))
        if stat.S_ISREG(found.st_mode):
            with open(f"/proc/self/fd/{descriptor}", "rb") as file:  # noqa: PTH123
                self._contents[found.st_ino] = file.read()

    def sure(self) -> dict[str, bytes]:
        """Returns the files that no power cut can take any more."""
        return dict(self._files(self.folder, lambda now, synced: synced))

    def after_cut(self) -> dict[str, bytes]:
        """Returns the files that a power cut in this moment may leave, drawn at random."""
        with self._lock:
            return dict(self._files(self.folder, lambda *either: self._rng.choice(either)))

    def _files(
        self, folder: Path, choose: Callable[[int | None, int | None], int | None]
    ) -> Iterator[tuple[str, bytes]]:
        now, synced = _names(folder), self._names.get(folder, {})
        for name in sorted(now.keys() | synced.keys()):
            number, path = choose(now.get(name), synced.get(name)), folder / name
            if number is not None and path.is_dir():
                yield from self._files(path, choose)
            elif number is not None and (content := self._content(number, path)) is not None:
                yield path.relative_to(self.folder).as_posix(), content

    def _content(self, number: int, path: Path) -> bytes | None:
        if number in self._contents:
            return self._contents[number]
        try:
            content = path.read_bytes()
        except OSError:  # another thread has just renamed it, or it was deleted
            return None
        kept = content[: self._rng.randrange(len(content) + 1)]
        return self._rng.choice((content, kept, kept.ljust(len(content), b"\0")))


def _names(folder: Path) -> dict[str, int]:
    try:
        return {entry.name: entry.inode() for entry in os.scandir(folder)}
    except FileNotFoundError:
        return {}
