r"""The one form in which names are compared, and names that a reader would take for the same.

>>> one_form("Mu\u0308ller") == "M\u00fcller"
True
>>> look_alike(["P-01", "p01", "P1_2", "P12", "P3"])
[['P-01', 'p01']]
"""

from __future__ import annotations

import collections
import re
import unicodedata
from collections.abc import Iterable
from typing import Any

from tfrecord_io.terminal.printing import printable


def one_form(text: str) -> str:
    """Returns text in Unicode's NFC, in which an umlaut is one character.

    macOS writes the names of files in NFD, where it is two. Text enters in this form: from names
    of files, cells of tables and flags. A file is opened by the name that its folder has.
    """
    return text if text.isascii() else unicodedata.normalize("NFC", text)


def written(name: str) -> str:
    r"""Returns a name as a terminal shows it, with escapes for what cannot be seen or typed.

    >>> written("no\u200btumor "), written("no tumor")
    ('no\\u200btumor\\x20', 'no tumor')
    """
    return re.sub(r"^ | $", r"\\x20", printable(name))


def in_one_form(value: Any) -> Any:
    """Returns a text, and those in a tuple or mapping, in `one_form`; anything else as it is."""
    if type(value) is str:  # an `Address` is opened as it was given
        return one_form(value)
    if type(value) is tuple:
        return tuple(map(in_one_form, value))
    if type(value) is dict:
        return {in_one_form(name): in_one_form(part) for name, part in value.items()}
    return value


def look_alike(names: Iterable[str]) -> list[list[str]]:
    """Returns the names that differ only in case, width, spaces, hyphens or invisible characters.

    Between two digits, a space or hyphen counts: 1-12 and 11-2 are two numbers.
    """
    alike = collections.defaultdict[str, list[str]](list)
    for name in sorted(set(names)):
        alike[_appearance(name)].append(name)
    return [same for same in alike.values() if len(same) > 1]


def _appearance(name: str) -> str:
    if name.isdecimal() and name.isascii():
        return name
    plain = unicodedata.normalize("NFKC", name).casefold()
    shown = "".join(char for char in plain if unicodedata.category(char) not in ("Cf", "Cc"))
    shown = re.sub(r"[\s_-]+", "-", shown.strip())
    return re.sub(r"(?<!\d)-|-(?!\d)", "", shown)
