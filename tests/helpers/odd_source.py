"""A folder of images whose reading does something odd; worker processes can import it."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
from collections.abc import Callable
from pathlib import Path

from builds import wait_until

from pipelines import errors
from pipelines.sources.directory import DirectorySource
from pipelines.sources.source import Member, Reader


@dataclasses.dataclass(frozen=True)
class OddSource(DirectorySource, Reader):
    """Calls a function with itself and the image before it reads one; `notes` is its folder."""

    oddity: Callable[[OddSource, Member], object] = print
    notes: Path = Path()

    def open(self) -> contextlib.AbstractContextManager[Reader]:
        return contextlib.nullcontext(self)

    def read(self, member: Member) -> bytes:
        self.oddity(self, member)
        return (self.directory / member.name).read_bytes()


def fail(source: OddSource, member: Member) -> None:
    """Notes the image and fails."""
    (source.notes / Path(member.name).name).touch()
    raise errors.BuildError(f"{member.name} is gone")


def die(source: OddSource, member: Member) -> None:
    """Ends the process, as the kernel does for want of memory."""
    os.kill(os.getpid(), signal.SIGKILL)


def wait_for_the_others(source: OddSource, member: Member) -> None:
    """Has the first image that is read wait until all others were."""
    try:
        (source.notes / "first").touch(exist_ok=False)
    except FileExistsError:
        (source.notes / Path(member.name).name).touch()
        return
    num_images = len(list(source.directory.rglob("*.jpeg")))
    wait_until(lambda: len(list(source.notes.iterdir())) == num_images)
