"""Errors of the trainer that a command tells without a traceback."""

import signal

from tfrecord_io.terminal.errors import ToldError, UserError


class ConfigError(UserError):
    """The trainer was used wrongly; the message says what was expected and what to do."""


class TrainingError(ToldError):
    """A run failed, or its checkpoint or export is damaged; the message says what to do."""


class StoppedError(ToldError):
    """A run was asked to stop by a signal; a process that a signal ends has this exit code."""

    def __init__(self, signal_number: int, step: int) -> None:
        super().__init__(
            f"stopped by {signal.Signals(signal_number).name} after step {step}; the state is "
            "saved; run the same command again to continue"
        )
        self.exit_code = 128 + signal_number
