"""What an example's label can be: the questions that each kind of label answers.

Tables hold a label as text, records hold it as float32 values, and manifests count it. To add a
kind, write a module beside this one, name it in `registry`, and write what a network learns from
it in `train.kinds`.
"""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence

import numpy as np

from tfrecord_io.printing import counted

#: Between the names in the text of a label, and the text of a label without a name.
SEPARATOR, NONE = "|", "none"


class LabelKind(abc.ABC):
    """What an example's label can be; by default, a 0 or 1 for each name.

    Attributes:
        name: in the manifest; a dataset of classes does not name it.
        format_version: the oldest version of the format that has such labels.
        noun: one label, in sentences; `plural` is several of them.
        values: what the values of a record's label are, in sentences.
        flag: the flag of the build that names the labels.
        one_hot: whether each example has exactly one of the labels.
        is_number: whether the label is a number, so that there are no classes to count.
        entry: what manifest.json, preprocessing.json and metrics.json say of the kind.
    """

    name: str
    format_version: int
    noun: str
    plural: str
    values: str
    flag: str
    one_hot: bool = False
    is_number: bool = False

    @property
    def entry(self) -> dict[str, str]:
        # Version 1 of the format has classes alone, and does not name them.
        return {} if self.format_version == 1 else {"label_kind": self.name}

    def __eq__(self, other: object) -> bool:
        # Workers get copies.
        return type(self) is type(other)

    def __hash__(self) -> int:
        return hash(type(self))

    @abc.abstractmethod
    def read_columns(
        self, columns: Mapping[str, Sequence[str | None]]
    ) -> tuple[list[str], dict[int, str]]:
        """Returns the texts of the labels in a table that a user gave, of its columns by name.

        The text of a row's label is "" where a cell is empty or None. By row, it also returns the
        cells that cannot be a label; their text is "" too.

        Raises:
            ValueError: if a cell shows that the column holds something else.
        """

    @abc.abstractmethod
    def names_in(self, text: str) -> list[str]:
        """Returns the names of the labels in a label's text; a number has none."""

    @abc.abstractmethod
    def is_label(self, values: np.ndarray) -> bool:
        """Tells whether the values of a record, float32 [num_labels], are a label."""

    @abc.abstractmethod
    def fits_counts(self, counts: Sequence[int], num_examples: int) -> bool:
        """Tells whether so many examples can have so many of each label."""

    def text_of(self, names: Sequence[str]) -> str:
        """Returns the text of a label that has these names, in the dataset's order."""
        return SEPARATOR.join(names) or NONE

    def text_in(self, values: np.ndarray, label_names: Sequence[str]) -> str:
        """Returns the text of a label from its values in a record, float32 [num_labels]."""
        return self.text_of([label_names[place] for place in np.flatnonzero(values).tolist()])

    def vectors(self, texts: Sequence[str], label_names: Sequence[str]) -> np.ndarray:
        """Returns the labels as records hold them, float32 [num_examples, num_labels]."""
        return self.has(texts, label_names).astype("<f4")

    def count(self, vectors: np.ndarray) -> tuple[int, ...]:
        """Returns how many examples have each label, from what `vectors` returns."""
        return tuple(vectors.astype(np.int64).sum(0).tolist())

    def counts(self, texts: Sequence[str], label_names: Sequence[str]) -> tuple[int, ...]:
        """Returns how many examples have each label, in the order of the names."""
        return self.count(self.vectors(texts, label_names))

    def has(self, texts: Sequence[str], label_names: Sequence[str]) -> np.ndarray:
        """Returns which examples have which labels, bool [num_examples, num_labels]."""
        places = {name: place for place, name in enumerate(label_names)}
        # One row for each different text, of which there are few.
        rows = {text: row for row, text in enumerate(dict.fromkeys(texts))}
        of_text = np.zeros((len(rows), len(label_names)), bool)
        for text, row in rows.items():
            of_text[row, [places[name] for name in self.names_in(text)]] = True
        return of_text[np.fromiter((rows[text] for text in texts), np.int64, len(texts))]

    def classes_of(
        self, texts: Sequence[str], codes: np.ndarray
    ) -> tuple[Sequence[str], np.ndarray]:
        """Divides examples into classes of the same label, or of similar numbers.

        Takes different texts, and int64 [num_examples], the place of each example's text. Returns
        the names of the classes, and int64 [num_examples], the class of each example.
        """
        return texts, codes

    def balance(self, counts: np.ndarray, texts: Sequence[str]) -> np.ndarray:
        """Returns the numbers of which each split should have the same share.

        Takes int64 [num_groups, num_texts], the number of examples by the text of their label.
        Returns int64 [num_groups, num_numbers]; each example is counted the same number of times.
        """
        return counts

    def describe(self, label_names: Sequence[str]) -> str:
        """Returns what labels a dataset has, such as `in 4 classes`."""
        return f"in {counted(len(label_names), self.noun, self.plural)}"
