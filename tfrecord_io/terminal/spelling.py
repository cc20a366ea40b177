r"""The one form in which names are compared.

>>> one_form("Mu\u0308ller") == "M\u00fcller"
True
"""

from __future__ import annotations

import re
import shlex
import unicodedata
from collections.abc import Mapping
from typing import Any

from tfrecord_io.terminal.printing import printable


def one_form(text: str) -> str:
    """Returns text in Unicode's NFC, in which an umlaut is one character.

    macOS writes the names of files in NFD, where it is two. Text enters in this form: from names
    of files, cells of tables and flags. A file is opened by the name that its folder has.
    """
    return text if text.isascii() else unicodedata.normalize("NFC", text)


def in_one_form(value: Any) -> Any:
    """Returns a text, and those in a tuple or mapping, in `one_form`; anything else as it is."""
    if type(value) is str:  # an `Address` is opened as it was given
        return one_form(value)
    if type(value) is tuple:
        return tuple(map(in_one_form, value))
    if type(value) is dict:
        return {in_one_form(name): in_one_form(part) for name, part in value.items()}
    return value


def compiled(flag: str, pattern: str, wanted: str = "") -> re.Pattern[str]:
    """Returns the pattern of a flag, whose first group is what is `wanted`, if something is.

    Raises:
        ValueError: naming the flag, if it is not a pattern or has no group.
    """
    try:
        found = re.compile(pattern)
        if wanted and not found.groups:
            raise re.error(f"it needs a group in parentheses for the {wanted}")
    except re.error as error:
        raise ValueError(f"--{flag} {pattern!r} is not a valid pattern: {error}") from None
    return found


def found_in(path: str, pattern: re.Pattern[str]) -> str | None:
    """Returns the first group of a pattern in a file's name, or else in its path; None without one.

    >>> found_in("p1/scan-3.png", re.compile("(p[0-9])/")), found_in("17.png", re.compile("(x)"))
    ('p1', None)
    """
    match = pattern.search(path.rpartition("/")[2]) or pattern.search(path)
    return (match and match.group(1)) or None


def rename_flag(names: Mapping[str, str]) -> str:
    """Returns the flag of a build that gives labels other names, as a shell reads it.

    >>> rename_flag({"no tumor": "no_tumor", "b": "c"})
    "--rename_classes 'no tumor=no_tumor,b=c'"
    """
    pairs = (f"{printable(old)}={printable(new)}" for old, new in names.items())
    return f"--rename_classes {shlex.quote(','.join(pairs))}"
