"""The errors of a build, whose messages are shown to the user."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from tfrecord_io.printing import printable


class _ToldError(Exception):
    """An error whose message is printed without a traceback.

    The message may contain file names from an untrusted archive, so control characters are escaped.
    """

    def __str__(self) -> str:
        # Line by line, because `printable` would escape the message's own line breaks.
        return "\n".join(printable(line) for line in super().__str__().split("\n"))


class UserError(_ToldError):
    """An error that the user can correct: wrong usage, or unsuitable input.

    The entry point prints only the message and exits with code 2.
    """


class BuildError(_ToldError):
    """A build that could not be finished.

    The entry point prints only the message and exits with code 1.
    """


@contextlib.contextmanager
def clear_write_errors(output: str) -> Iterator[None]:
    """Turns an error of the output's file system, such as a full disk, into a `BuildError`.

    Args:
        output: the output folder or URL, named in the message.

    Raises:
        BuildError: if the block raises an OSError.
    """
    try:
        yield
    except OSError as error:
        raise BuildError(f"cannot write {output}: {error.strerror or error}") from error
