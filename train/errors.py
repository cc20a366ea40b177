"""Errors of the trainer that a command tells without a traceback."""

import signal


class ConfigError(ValueError):
    """The trainer was used wrongly; the message says what was expected and what to do."""


class MetricsError(ValueError):
    """The predictions cannot be evaluated."""


class TrainingError(RuntimeError):
    """A run failed, or its checkpoint or export is damaged; the message says what to do."""


class StoppedError(Exception):
    """A run was asked to stop.

    Attributes:
        signal_number: the signal that was received.
    """

    def __init__(self, signal_number: int, step: int) -> None:
        super().__init__(
            f"stopped by {signal.Signals(signal_number).name} after step {step}; the state is "
            "saved; run the same command again to continue"
        )
        self.signal_number = signal_number
