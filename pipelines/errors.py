"""What may go wrong in a build, as the user is told."""


class UserError(Exception):
    """Something the user can set right: wrong usage, or input that is not what was said.

    The entry point prints the message alone and exits with code 2.
    """


class BuildError(Exception):
    """A build that could not be finished. The message alone is printed; the exit code is 1."""
