"""Names and messages from strangers' files, made safe for a terminal, a table and a page."""

from __future__ import annotations

# What a spreadsheet takes for the beginning of a formula.
_FORMULA_STARTS = ("=", "+", "-", "@")


def printable(text: str, max_length: int | None = None) -> str:
    r"""Returns text in which all that is not printable is escaped, as in a Python string.

    Control characters, which can command a terminal, become such as `\x1b` and `\n`; bytes of a
    file name that are no text (surrogates) such as `\udcff`. Letters of any script stay.

    Args:
        text: any text.
        max_length: characters that are left of a longer one, the dots at its end included.
    """
    if not text.isprintable():
        text = "".join(
            char if char.isprintable() else char.encode("unicode_escape").decode() for char in text
        )
    if max_length is not None and len(text) > max_length:
        text = text[: max_length - 1] + "…"
    return text


def csv_cell(text: str) -> str:
    """Returns printable text that a spreadsheet does not take for a formula.

    See `no_formula`.
    """
    return no_formula(printable(text))


def no_formula(text: str) -> str:
    """Returns text that a spreadsheet does not take for a formula, otherwise as it is.

    What begins with `=`, `+`, `-` or `@` gets a quote before it (OWASP, CSV injection).
    """
    return f"'{text}" if text.startswith(_FORMULA_STARTS) else text
