"""The error of a trainer that was used wrongly."""


class ConfigError(ValueError):
    """The trainer was used wrongly; the message says what was expected and what to do."""
