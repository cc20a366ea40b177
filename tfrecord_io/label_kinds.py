"""The kinds of label, and how tables, records and counts represent them.

Tables hold a label as text. The text of a class is its name. The text of several labels is their
names with `|` between them, in the dataset's order, or `none`. The text of a number is the shortest
one that stands for its float32.
"""

from __future__ import annotations

import abc
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

SEPARATOR = "|"

#: Text of an example that has none of several labels.
NONE = "none"

_NUM_RANGES = 4


class LabelKind(abc.ABC):
    """What an example's label can be.

    Attributes:
        name: in the manifest; a dataset of classes does not name it.
        format_version: the oldest version of the format that has such labels.
        noun: one label, in sentences.
        plural: several of them.
        values: what the values of a record's label are, in sentences.
        one_hot: whether each example has exactly one of the labels.
    """

    name: str
    format_version: int
    noun: str
    plural: str
    values: str
    one_hot: bool = False

    @abc.abstractmethod
    def names_in(self, text: str) -> list[str]:
        """Returns the names of the labels in a label's text; a number has none."""

    @abc.abstractmethod
    def is_label(self, values: np.ndarray) -> bool:
        """Tells whether the values of a record, float32 [num_labels], are a label."""

    @abc.abstractmethod
    def fits_counts(self, counts: Sequence[int], num_examples: int) -> bool:
        """Tells whether so many examples can have so many of each label."""

    @abc.abstractmethod
    def balance(self, counts: np.ndarray, texts: Sequence[str]) -> np.ndarray:
        """Returns the numbers of which each split should have the same share.

        Args:
            counts: int64 [num_groups, num_texts], number of examples by the text of their label.
            texts: the texts, see `classes_of`.

        Returns:
            int64 [num_groups, num_numbers]; each example is counted the same number of times.
        """

    @abc.abstractmethod
    def vectors(self, texts: Sequence[str], label_names: Sequence[str]) -> np.ndarray:
        """Returns the labels as records hold them, float32 [num_examples, num_labels]."""

    @abc.abstractmethod
    def count(self, vectors: np.ndarray) -> tuple[int, ...]:
        """Returns how many examples have each label, from what `vectors` returns."""

    @abc.abstractmethod
    def classes_of(
        self, texts: Sequence[str], codes: np.ndarray
    ) -> tuple[Sequence[str], np.ndarray]:
        """Divides examples into classes of the same label, or of similar numbers.

        Args:
            texts: different texts.
            codes: int64 [num_examples], the place of each example's text.

        Returns:
            the names of the classes, and int64 [num_examples], the class of each example.
        """

    def __reduce__(self) -> tuple[Any, ...]:
        # A worker gets the same object, so kinds can be compared with `is`.
        return kind_named, (self.name,)

    @abc.abstractmethod
    def text_in(self, values: np.ndarray, label_names: Sequence[str]) -> str:
        """Returns the text of a label from its values in a record, float32 [num_labels]."""

    def has(self, texts: Sequence[str], label_names: Sequence[str]) -> np.ndarray:
        """Returns which examples have which labels, bool [num_examples, num_labels]."""
        places = {name: place for place, name in enumerate(label_names)}
        # One row for each different text, of which there are few.
        rows = {text: row for row, text in enumerate(dict.fromkeys(texts))}
        of_text = np.zeros((len(rows), len(label_names)), bool)
        for text, row in rows.items():
            of_text[row, [places[name] for name in self.names_in(text)]] = True
        return of_text[np.fromiter((rows[text] for text in texts), np.int64, len(texts))]

    def counts(self, texts: Sequence[str], label_names: Sequence[str]) -> tuple[int, ...]:
        """Returns how many examples have each label, in the order of the names."""
        return self.count(self.vectors(texts, label_names))


class _Named(LabelKind):
    """Each example has or has not each of the labels, by name."""

    @abc.abstractmethod
    def text_of(self, names: Sequence[str]) -> str:
        """Returns the text of a label that has these names, in the dataset's order."""

    def text_in(self, values: np.ndarray, label_names: Sequence[str]) -> str:
        return self.text_of([label_names[place] for place in np.flatnonzero(values).tolist()])

    def vectors(self, texts: Sequence[str], label_names: Sequence[str]) -> np.ndarray:
        return self.has(texts, label_names).astype("<f4")

    def count(self, vectors: np.ndarray) -> tuple[int, ...]:
        return tuple(vectors.astype(np.int64).sum(0).tolist())

    def classes_of(
        self, texts: Sequence[str], codes: np.ndarray
    ) -> tuple[Sequence[str], np.ndarray]:
        return texts, codes


class _Classes(_Named):
    """Each example has one class, and its label is one-hot."""

    name, format_version, noun, plural = "class", 1, "class", "classes"
    values, one_hot = "one-hot", True

    def names_in(self, text: str) -> list[str]:
        return [text]

    def text_of(self, names: Sequence[str]) -> str:
        (name,) = names
        return name

    def balance(self, counts: np.ndarray, texts: Sequence[str]) -> np.ndarray:
        return counts

    def is_label(self, values: np.ndarray) -> bool:
        return sorted(values.tolist()) == [0.0] * (len(values) - 1) + [1.0]

    def fits_counts(self, counts: Sequence[int], num_examples: int) -> bool:
        return sum(counts) == num_examples


class _Grades(_Classes):
    """The classes are grades, and their names are in ascending order."""

    name, format_version, noun, plural = "grade", 2, "grade", "grades"


class _Ranges(_Classes):
    """The classes are ranges of a number; no dataset is stored with them."""

    noun, plural = "range", "ranges"


class _MultiLabel(_Named):
    """Each example has any number of the labels, and its label is a 0 or 1 for each of them."""

    name, format_version, noun, plural = "multi_label", 2, "label", "labels"
    values = "of 0 and 1"

    def names_in(self, text: str) -> list[str]:
        return [] if text == NONE else text.split(SEPARATOR)

    def text_of(self, names: Sequence[str]) -> str:
        return SEPARATOR.join(names) or NONE

    def is_label(self, values: np.ndarray) -> bool:
        return set(values.tolist()) <= {0.0, 1.0}

    def fits_counts(self, counts: Sequence[int], num_examples: int) -> bool:
        return all(0 <= count <= num_examples for count in counts)

    def balance(self, counts: np.ndarray, texts: Sequence[str]) -> np.ndarray:
        names = sorted({name for text in texts for name in self.names_in(text)})
        if not names:
            return counts
        with_label = self.has(texts, names).astype(np.int64)
        return counts @ np.hstack([with_label, 1 - with_label])


class _Number(LabelKind):
    """Each example has a number, which is its label; the only name is that of the number."""

    name, format_version, noun, plural = "number", 2, "number", "numbers"
    values = "one finite number"

    def names_in(self, text: str) -> list[str]:
        return []

    def balance(self, counts: np.ndarray, texts: Sequence[str]) -> np.ndarray:
        return counts

    def is_label(self, values: np.ndarray) -> bool:
        return len(values) == 1 and math.isfinite(values[0])

    def fits_counts(self, counts: Sequence[int], num_examples: int) -> bool:
        return list(counts) == [num_examples]

    def text_in(self, values: np.ndarray, label_names: Sequence[str]) -> str:
        return _shortest(values[0])

    def vectors(self, texts: Sequence[str], label_names: Sequence[str]) -> np.ndarray:
        return np.array(texts, "<f4").reshape(len(texts), 1)

    def count(self, vectors: np.ndarray) -> tuple[int, ...]:
        return (len(vectors),)

    def classes_of(
        self, texts: Sequence[str], codes: np.ndarray
    ) -> tuple[Sequence[str], np.ndarray]:
        return ranges_of(np.array(texts, np.float32)[codes])


CLASSES: LabelKind = _Classes()
GRADES: LabelKind = _Grades()
MULTI_LABEL = _MultiLabel()
NUMBER: LabelKind = _Number()

#: What a number's classes are, see `LabelKind.classes_of`.
RANGES: LabelKind = _Ranges()

_STORED = (CLASSES, GRADES, MULTI_LABEL, NUMBER)


def kind_named(name: str) -> LabelKind:
    """Returns the kind of a name in a manifest.

    Raises:
        ValueError: if the name is unknown.
    """
    for kind in _STORED:
        if kind.name == name:
            return kind
    names = ", ".join(kind.name for kind in _STORED)
    raise ValueError(f"label_kind must be one of {names}, received {name!r}")


def number_text(text: str) -> str | None:
    """Returns the text of a number as tables hold it, or None if it is not finite as float32.

    Args:
        text: the number as somebody wrote it, such as `3.50` or `1e3`.
    """
    try:
        value = float(text)
    except ValueError:
        return None
    with np.errstate(over="ignore"):
        stored = np.float32(value)
    return _shortest(stored) if np.isfinite(stored) else None


def _shortest(value: np.floating[Any]) -> str:
    # Adding zero turns -0 into 0.
    return str(value + np.float32(0)).removesuffix(".0")


def ranges_of(values: np.ndarray) -> tuple[tuple[str, ...], np.ndarray]:
    """Divides numbers into up to four ranges that hold about as many each.

    Args:
        values: float32 [num_examples], finite.

    Returns:
        the names of the ranges in ascending order, such as `1.5 to 3`, and int64 [num_examples],
        the range of each number.
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
