"""The error of the trainer that a command prints without a traceback, besides those of its data."""

from tfrecord_io.terminal.errors import MessageError


class TrainingError(MessageError):
    """A run failed or was stopped, or its checkpoint or export is damaged.

    The message says what to do; the exit code of a stop is that of a process that a signal ends.
    """

    def __init__(self, message: str, exit_code: int = 1) -> None:
        super().__init__(message)
        self.exit_code = exit_code
