"""What a process that is killed leaves on a disk."""

import contextlib
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest import mock

from builds import files_of

_CHANGES = ("replace", "unlink", "rmdir", "fsync")


def killed_anywhere(folder: Path, copies: Path, do: Callable[[], object]) -> Iterator[None]:
    """Calls a function; then puts a folder, in turn, into each state in which a kill leaves it.

    These are the states before the changes that the function makes to the disk, each once, copied
    into another folder meanwhile.
    """
    states: list[dict[str, bytes]] = []

    def noted(change: Callable[..., object]) -> Callable[..., object]:
        def call(*arguments: object, **named: object) -> object:
            if (state := files_of(folder)) not in states:
                shutil.copytree(folder, copies / str(len(states)))
                states.append(state)
            return change(*arguments, **named)

        return call

    with contextlib.ExitStack() as patches:
        for name in _CHANGES:
            patches.enter_context(mock.patch.object(os, name, noted(getattr(os, name))))
        do()
    for number in range(len(states)):
        shutil.rmtree(folder)
        (copies / str(number)).rename(folder)
        yield
