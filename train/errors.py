"""Errors of the trainer that a command tells without a traceback."""


class ConfigError(ValueError):
    """The trainer was used wrongly; the message says what was expected and what to do."""


class MetricsError(ValueError):
    """The predictions cannot be evaluated."""
