"""What may go wrong in a build, as the user is told."""

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
