"""The labels in the cells of a table: several in a cell, one of several columns, uncertain ones."""

from __future__ import annotations

from collections.abc import Collection

from tfrecord_io.format.kinds import MULTI_LABEL, NONE, SEPARATOR, Columns, LabelKind

_SEPARATORS = ("|", ";")


def read_labels(
    columns: Columns, kind: LabelKind, uncertain: str | None
) -> tuple[list[str], dict[int, str]]:
    """Returns what `LabelKind.read_columns` does; a class may have several columns, of 0 and 1.

    Args:
        columns: the cells by the name of their column.
        kind: what a label can be.
        uncertain: what -1 means in a column of 0 and 1: `positive`, `negative` or `missing`.

    Raises:
        ValueError: if a cell shows that its column holds something else, or a row has two classes.
    """
    is_one_hot = kind.one_hot and len(columns) > 1
    if uncertain:
        meant = {"positive": "1", "negative": "0", "missing": None}[uncertain]
        columns = {
            name: [meant if cell in ("-1", "-1.0") else cell for cell in cells]
            for name, cells in columns.items()
        }
    texts, wrong = (MULTI_LABEL if is_one_hot else kind).read_columns(columns)
    for row, text in enumerate(texts if is_one_hot else (), 1):
        if len(MULTI_LABEL.names_in(text)) > 1:
            raise ValueError(f"row {row:,} has a 1 for {text}; --one_class expects a single one")
    return ["" if is_one_hot and text == NONE else text for text in texts], wrong


def split_labels(columns: Columns, separator: str) -> tuple[list[str], tuple[str, ...]]:
    """Returns the text of the labels in each cell, and the names of all labels, sorted.

    Raises:
        ValueError: if a label has a character that no name may have.
    """
    (cells,) = columns.values()
    parts = [{part.strip() for part in (cell or "").split(separator)} - {""} for cell in cells]
    names = tuple(sorted(set[str]().union(*parts) - {NONE}))
    if wrong := [name for name in names if SEPARATOR in name]:
        raise ValueError(f"a label cannot have {SEPARATOR} in its name; received {wrong[0]!a}")
    texts = [MULTI_LABEL.text_of([name for name in names if name in part]) for part in parts]
    return [text if part else "" for text, part in zip(texts, parts, strict=True)], names


def combined_in(classes: Collection[str]) -> tuple[str, str, bool] | None:
    """Returns a separator, a class that it divides, and whether the parts are in other classes."""
    for separator in _SEPARATORS:
        several = [name for name in classes if separator in name]
        parts = [part.strip() for name in several for part in name.split(separator)]
        if several:
            return separator, several[0], len({*parts, *classes}) < len(parts) + len(classes)
    return None
