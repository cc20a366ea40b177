"""The kinds of label, and what tables, records and counts have to know of them.

Tables hold a label as text. The text of a class is its name. The text of several labels is their
names with `|` between them, in the dataset's order, or `none`.
"""

from __future__ import annotations

import abc
from collections.abc import Sequence
from typing import Any

import numpy as np

SEPARATOR = "|"

#: Text of an example that has none of several labels.
NONE = "none"


class LabelKind(abc.ABC):
    """What an example's label can be.

    Attributes:
        name: in the manifest; a dataset of classes does not name it.
        format_version: the oldest version of the format that has such labels.
        noun: one label, in sentences.
        plural: several of them.
    """

    name: str
    format_version: int
    noun: str
    plural: str

    @abc.abstractmethod
    def names_in(self, text: str) -> list[str]:
        """Returns the names of the labels in a label's text."""

    @abc.abstractmethod
    def text_of(self, names: Sequence[str]) -> str:
        """Returns the text of a label that has these names, in the dataset's order."""

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
            texts: the texts.

        Returns:
            int64 [num_groups, num_numbers]; each example is counted the same number of times.
        """

    def __reduce__(self) -> tuple[Any, ...]:
        # A worker gets the same object, so kinds can be compared with `is`.
        return kind_named, (self.name,)

    def has(self, texts: Sequence[str], label_names: Sequence[str]) -> np.ndarray:
        """Returns which examples have which labels, bool [num_examples, num_labels]."""
        places = {name: place for place, name in enumerate(label_names)}
        found = np.zeros((len(texts), len(label_names)), bool)
        of_text = {text: [places[name] for name in self.names_in(text)] for text in set(texts)}
        for row, text in enumerate(texts):
            found[row, of_text[text]] = True
        return found

    def counts(self, texts: Sequence[str], label_names: Sequence[str]) -> tuple[int, ...]:
        """Returns how many examples have each label, in the order of the names."""
        return tuple(self.has(texts, label_names).sum(0).tolist())


class _Classes(LabelKind):
    """Each example has one class, and its label is one-hot."""

    name, format_version, noun, plural = "class", 1, "class", "classes"

    def names_in(self, text: str) -> list[str]:
        return [text]

    def text_of(self, names: Sequence[str]) -> str:
        (name,) = names
        return name

    def is_label(self, values: np.ndarray) -> bool:
        return sorted(values.tolist()) == [0.0] * (len(values) - 1) + [1.0]

    def fits_counts(self, counts: Sequence[int], num_examples: int) -> bool:
        return sum(counts) == num_examples

    def balance(self, counts: np.ndarray, texts: Sequence[str]) -> np.ndarray:
        return counts


class _Several(LabelKind):
    """Each example has any number of the labels, and its label is a 0 or 1 for each of them."""

    name, format_version, noun, plural = "multi_label", 2, "label", "labels"

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


CLASSES: LabelKind = _Classes()
SEVERAL: LabelKind = _Several()


def kind_named(name: str) -> LabelKind:
    """Returns the kind of a name in a manifest.

    Raises:
        ValueError: if the name is unknown.
    """
    for kind in (CLASSES, SEVERAL):
        if kind.name == name:
            return kind
    raise ValueError(f"label_kind must be {CLASSES.name} or {SEVERAL.name}, received {name!r}")
