"""Texts: safe names of untrusted files, words for counts; `unicodedata` and tqdm do the rest."""

from __future__ import annotations

import contextlib
import os
import sys
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tqdm import tqdm

# Characters with which a spreadsheet begins a formula.
_FORMULA_STARTS = ("=", "+", "-", "@")


@contextlib.contextmanager
def until_closed() -> Iterator[None]:
    """Ends the block without an error when nobody reads standard output any more, as `| head`."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        # Python flushes it once more at the end (docs of the signal module, "Note on SIGPIPE").
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def bar(**settings: Any) -> tqdm:
    """Returns a progress bar; a log file, to which each refresh adds text, gets few of them."""
    from tqdm import tqdm  # every reader and worker imports this module

    is_terminal = sys.stderr.isatty()
    seconds = 0.1 if is_terminal else 10.0
    return tqdm(mininterval=seconds, dynamic_ncols=is_terminal, **settings)


def printable(text: str, max_length: int | None = None) -> str:
    r"""Returns text with all unprintable characters escaped, as in a Python string.

    Control characters become escapes such as `\x1b` and `\n`, undecodable bytes of a file name
    (surrogates) such as `\udcff`. Letters of any script stay. Text longer than `max_length` is cut
    to that length, including the ellipsis at its end.
    """
    if not text.isprintable():
        text = "".join(
            char if char.isprintable() else char.encode("unicode_escape").decode() for char in text
        )
    if max_length is not None and len(text) > max_length:
        text = text[: max_length - 1] + "…"
    return text


def csv_cell(text: str) -> str:
    """Returns text as `printable` and `no_formula` do."""
    return no_formula(printable(text))


def no_formula(text: str) -> str:
    """Returns text, in quotes if a spreadsheet read it as a formula (OWASP, CSV injection)."""
    return f"'{text}" if text.startswith(_FORMULA_STARTS) else text


def one_form(text: str) -> str:
    r"""Returns text in Unicode's NFC, in which an umlaut is one character.

    >>> one_form("Mu\u0308ller") == "M\u00fcller"
    True

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


def counted(number: int, noun: str, plural: str | None = None) -> str:
    """Returns a number with its noun, such as `1 image`, or its plural, such as `3,000 images`."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def many(count: int, noun: str, plural: str | None = None) -> str:
    """Returns a phrase such as `1 patient is` or `3 patients are`."""
    return f"{counted(count, noun, plural)} {'is' if count == 1 else 'are'}"


def listed(names: Sequence[str], most: int = 5) -> str:
    """Returns names for a sentence, such as `a, b and 3 more` if `most` is 2."""
    shown = ", ".join(names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most:,} more"


def sentence(text: str) -> str:
    """Returns a note as a sentence, with a capital and a full stop; an empty note stays empty."""
    return text[:1].upper() + text[1:] + ("." if text and text[-1] not in ".?!" else "")


def differences(
    old: Mapping[str, Any], new: Mapping[str, Any], there: str = "there", here: str = "now"
) -> list[str]:
    """Returns a line for each entry in which two mappings differ: `seed: 0 there, 7 now`."""
    return [
        f"{name}: {old.get(name)!r} {there}, {new.get(name)!r} {here}"
        for name in sorted(old.keys() | new.keys())
        if old.get(name) != new.get(name)
    ]
