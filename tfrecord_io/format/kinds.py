"""The kinds of label: how tables, records and counts hold the label of an example.

Tables hold a label as text, records hold it as float32 values, and manifests count it. To add a
kind, write a class here, name it in `KINDS`, and write what a network learns from it in
`train.kinds`.

>>> CLASSES.vectors(["CNV", "NORMAL"], ["CNV", "NORMAL"]).tolist()
[[1.0, 0.0], [0.0, 1.0]]
>>> MULTI_LABEL.vectors(["CNV|DRUSEN", "none"], ["CNV", "DME", "DRUSEN"]).tolist()
[[1.0, 0.0, 1.0], [0.0, 0.0, 0.0]]
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tfrecord_io.terminal.printing import counted

#: Between the names in the text of a label, and the text of a label without a name.
SEPARATOR, NONE = "|", "none"


@dataclasses.dataclass(frozen=True)  # so that the copies that workers get are equal
class LabelKind:
    """What an example's label can be; by default any number of names, a 0 or 1 for each.

    Attributes:
        name: in the manifest; a dataset of classes does not name it.
        format_version: the oldest version of the format that has such labels.
        noun: one label, in sentences; `plural` is several of them, `values` those of a record.
        flag: the flag of the build that names the labels.
        one_hot: whether each example has exactly one of the labels.
    """

    name, format_version, noun, plural = "multi_label", 2, "label", "labels"
    values, flag, one_hot = "of 0 and 1", "--label_columns", False

    @property
    def entry(self) -> dict[str, str]:
        """What manifest.json, preprocessing.json and metrics.json say of the kind."""
        # Version 1 of the format has classes alone, and does not name them.
        return {} if self.format_version == 1 else {"label_kind": self.name}

    def names_in(self, text: str) -> list[str]:
        """Returns the names of the labels in a label's text."""
        return [] if text == NONE else text.split(SEPARATOR)

    def is_label(self, values: np.ndarray) -> bool:
        """Tells whether the values of a record, float32 [num_labels], are a label."""
        return set(values.tolist()) <= {0.0, 1.0}

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
        # One row for each distinct text, because there are few of them.
        rows = {text: row for row, text in enumerate(dict.fromkeys(texts))}
        of_text = np.zeros((len(rows), len(label_names)), bool)
        for text, row in rows.items():
            of_text[row, [places[name] for name in self.names_in(text)]] = True
        return of_text[np.fromiter((rows[text] for text in texts), np.int64, len(texts))]

    def describe(self, label_names: Sequence[str]) -> str:
        """Returns what labels a dataset has, such as `in 4 classes`."""
        return f"in {counted(len(label_names), self.noun, self.plural)}"


class OneClass(LabelKind):
    """Each example has one class, whose name is the text of its label."""

    name, format_version, noun, plural = "class", 1, "class", "classes"
    values, flag, one_hot = "one-hot", "--classes", True

    def names_in(self, text: str) -> list[str]:
        return [text]

    def is_label(self, values: np.ndarray) -> bool:
        return sorted(values.tolist()) == [0.0] * (len(values) - 1) + [1.0]


class OneGrade(OneClass):
    """Each example has one grade; their names are in ascending order."""

    name, format_version, noun, plural, flag = "grade", 2, "grade", "grades", "--grades"


CLASSES, GRADES, MULTI_LABEL = KINDS = OneClass(), OneGrade(), LabelKind()


def kind_in(content: Mapping[str, Any]) -> LabelKind:
    """Returns the kind that a JSON file names, see `LabelKind.entry`, or raises a ValueError."""
    kinds = {kind.name: kind for kind in KINDS}
    wanted = content.get("label_kind", CLASSES.name)
    # Of any type, as long as the manifest is not checked.
    if not isinstance(wanted, str) or wanted not in kinds:
        raise ValueError(f"label_kind must be one of {', '.join(kinds)}, received {wanted!r}")
    return kinds[wanted]
