"""The errors whose messages are shown without a traceback; Python shows all others."""

from __future__ import annotations

from typing import Literal

from tfrecord_io.terminal.printing import printable


class MessageError(Exception):
    """An error whose message is printed without a traceback.

    The message may contain file names from an untrusted archive, so control characters are escaped.

    Attributes:
        exit_code: of the command that ends with this error.
    """

    exit_code = 1

    def __str__(self) -> str:
        # Line by line, because `printable` would escape the message's own line breaks.
        return "\n".join(printable(line) for line in super().__str__().split("\n"))


class UserError(MessageError):
    """An error that the user can correct: wrong usage, or unsuitable input."""

    exit_code = 2


class StoreError(MessageError):
    """An object store that refuses, fails, or has another version of a file.

    It is not an OSError, because Pillow and zipfile take those for a damaged file.

    Attributes:
        cause: `denied`: no rights, no credentials or no such bucket; `changed`: the file is another
            version than the one that was first seen. Another attempt does not help. Empty for other
            errors.
    """

    def __init__(self, message: str, cause: Literal["", "denied", "changed"] = "") -> None:
        super().__init__(message)
        self.cause = cause
