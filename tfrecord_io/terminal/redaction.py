"""Keeps passwords, tokens and signatures out of all that a command writes.

>>> without_secrets("cannot read https://me:password@host/x.zip?signature=abc: HTTP 403")
'cannot read https://host/x.zip: HTTP 403'
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterator
from typing import Any, TextIO, cast

# What stands for a secret.
_HIDDEN = "[hidden]"

# A Path has one slash of two.
_USER = re.compile(r"(\b\w+:/{1,2})[^/?#\s]*@")
# Without a colon or a full stop behind it.
_QUERY = re.compile(
    r"(\bhttps?:/{1,2}[^\s?#'\"<>()]*)[?#][^\s'\"<>()]*?(?=[:;,.]*(?:[\s'\"<>()]|$))"
)
_VARIABLE = re.compile(
    "(AWS|AZURE|GOOGLE|KAGGLE)_.*(KEY|SECRET|TOKEN|PASSWORD|CONNECTION_STRING)", re.IGNORECASE
)
# A shorter value could be a part of ordinary words.
_LEAST_LENGTH = 8

_remembered: set[str] = set()


def remember(*secrets: str) -> None:
    """Has values, such as a token that was read from a file, hidden from now on."""
    _remembered.update(secrets)


def without_secrets(text: str) -> str:
    """Returns text without user names, passwords and signatures in URLs, and without keys.

    Keys are what `remember` was given, and the values of the environment variables in which the
    tools of object stores and Kaggle's look for them.
    """
    if ":/" in text:
        text = _QUERY.sub(r"\1", _USER.sub(r"\1", text))
    keys = [value for name, value in os.environ.items() if _VARIABLE.fullmatch(name)]
    for secret in (*_remembered, *keys):
        if len(secret) >= _LEAST_LENGTH:
            text = text.replace(secret, _HIDDEN)
    return text


@contextlib.contextmanager
def redacted_output(heard: Callable[[], object] = lambda: None) -> Iterator[None]:
    """Removes secrets from whatever a block or function writes to `sys.stdout` and `sys.stderr`.

    Before each text, `heard` is called.
    """
    # Typed as files, which is all that their users need them to be.
    out, err = (cast(TextIO, _Redacted(stream, heard)) for stream in (sys.stdout, sys.stderr))
    # It stays, for a traceback that ends the process.
    sys.excepthook = lambda kind, error, trace: print(
        without_secrets("".join(traceback.format_exception(kind, error, trace))),
        end="",
        file=sys.stderr,
    )
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        yield


class _Redacted:
    """A text file that writes text without secrets to another file."""

    def __init__(self, file: TextIO, heard: Callable[[], object]) -> None:
        self._file, self._heard = file, heard

    def write(self, text: str) -> int:
        """Writes text; returns its number of characters."""
        self._heard()
        self._file.write(without_secrets(text))
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)
