"""A number for each example. Its text is the shortest one that stands for its float32.

>>> number_text("3.50")
'3.5'
>>> ranges_of(np.arange(8))[0]
('0 to 1', '2 to 3', '4 to 5', '6 to 7')
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tfrecord_io.kinds.label_kind import LabelKind

_NUM_RANGES = 4


class Numbers(LabelKind):
    """Each example has a number; the only name is that of the number."""

    name, format_version, noun, plural = "number", 2, "number", "numbers"
    values, flag, is_number = "one finite number", "--target", True

    def read_columns(
        self, columns: Mapping[str, Sequence[str | None]]
    ) -> tuple[list[str], dict[int, str]]:
        (cells,) = columns.values()
        texts = [number_text(cell) if cell and cell.strip() else "" for cell in cells]
        wrong = {row: cells[row] or "" for row, text in enumerate(texts) if text is None}
        return [text or "" for text in texts], wrong

    def names_in(self, text: str) -> list[str]:
        return []

    def text_in(self, values: np.ndarray, label_names: Sequence[str]) -> str:
        return _shortest(values[0])

    def is_label(self, values: np.ndarray) -> bool:
        return len(values) == 1 and math.isfinite(values[0])

    def vectors(self, texts: Sequence[str], label_names: Sequence[str]) -> np.ndarray:
        return np.array(texts, "<f4").reshape(len(texts), 1)

    def count(self, vectors: np.ndarray) -> tuple[int, ...]:
        return (len(vectors),)

    def fits_counts(self, counts: Sequence[int], num_examples: int) -> bool:
        return list(counts) == [num_examples]

    def classes_of(
        self, texts: Sequence[str], codes: np.ndarray
    ) -> tuple[Sequence[str], np.ndarray]:
        return ranges_of(np.array(texts, np.float32)[codes])

    def describe(self, label_names: Sequence[str]) -> str:
        return f"with the number {label_names[0]}"


NUMBER = Numbers()


def number_text(text: str) -> str | None:
    """Returns the text of a number as tables hold it, or None if it is not finite as float32."""
    try:
        # Python also takes 1_000 and the digits of other scripts, which may be a mistake.
        value = float(text if text.isascii() and "_" not in text else "")
    except ValueError:
        return None
    with np.errstate(over="ignore"):
        stored = np.float32(value)
    return _shortest(stored) if np.isfinite(stored) else None


def _shortest(value: np.floating[Any]) -> str:
    # Adding zero turns -0 into 0.
    return str(value + np.float32(0)).removesuffix(".0")


def ranges_of(values: np.ndarray) -> tuple[tuple[str, ...], np.ndarray]:
    """Divides numbers, float32 [num_examples], into up to four ranges of about as many each.

    Returns the names of the ranges in ascending order, such as `1.5 to 3`, and int64
    [num_examples], the range of each number.
    """
    if not len(values):
        return (), np.empty(0, np.int64)
    bounds = np.quantile(values, np.arange(1, _NUM_RANGES) / _NUM_RANGES, method="higher")
    # Equal numbers are in the same range, so a range can be empty.
    _, codes = np.unique(np.searchsorted(bounds, values, "right"), return_inverse=True)
    names = []
    for code in range(codes.max() + 1):
        members = values[codes == code]
        low, high = _shortest(members.min()), _shortest(members.max())
        names.append(low if low == high else f"{low} to {high}")
    return tuple(names), codes.astype(np.int64)
