"""The errors of a build, whose messages are shown to the user."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from tfrecord_io.decoding.rejects import is_of_content
from tfrecord_io.terminal.errors import MessageError as MessageError
from tfrecord_io.terminal.errors import StoreError as StoreError
from tfrecord_io.terminal.errors import UserError as UserError


class BuildError(MessageError):
    """A build that could not be finished.

    The entry point prints only the message and exits with code 1.
    """


class RefusedError(BuildError):
    """A dataset that must not be used as it is: too many rejects, or patients in several splits."""


@contextlib.contextmanager
def clear_write_errors(output: str) -> Iterator[None]:
    """Turns an error of the output's file system, such as a full disk, into a `BuildError`."""
    try:
        yield
    except OSError as error:
        raise BuildError(f"cannot write {output}: {error.strerror or error}") from error


@contextlib.contextmanager
def clear_read_errors(shown: str) -> Iterator[None]:
    """Turns an error of the machine that reads the input into a `BuildError`.

    An error in a file's content, see `rejects.is_of_content`, is raised unchanged.
    """
    try:
        yield
    except (OSError, MemoryError) as error:
        if is_of_content(error):
            raise
        reason = "out of memory" if isinstance(error, MemoryError) else error.strerror
        raise BuildError(
            f"cannot read {getattr(error, 'filename', None) or shown}: {reason}. Every worker must "
            "be able to read it; check the disk, the permissions and the machine, and run the same "
            "command again to resume"
        ) from None


def changed(shown: str, how: str = "changed") -> BuildError:
    """Returns the error of an input that is not what it was when it was listed, or not there."""
    return BuildError(f"{shown} {how} since the build began; start again with --overwrite")
