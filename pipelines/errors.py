"""What may go wrong in a build, as the user is told."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from tfrecord_io.printing import printable


class _ToldError(Exception):
    """An error whose message is printed alone, and may name files of a stranger."""

    def __str__(self) -> str:
        # The lines of the message itself stay.
        return "\n".join(printable(line) for line in super().__str__().split("\n"))


class UserError(_ToldError):
    """Something the user can set right: wrong usage, or input that is not what was said.

    The entry point prints the message alone and exits with code 2.
    """


class BuildError(_ToldError):
    """A build that could not be finished. The message alone is printed; the exit code is 1."""


@contextlib.contextmanager
def clear_write_errors(output: str) -> Iterator[None]:
    """Turns an error of the output's file system, such as a full disk, into a `BuildError`.

    Args:
        output: folder or URL, for the message.
    """
    try:
        yield
    except OSError as error:
        raise BuildError(f"cannot write {output}: {error.strerror or error}") from error
