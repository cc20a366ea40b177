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
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tfrecord_io.terminal.printing import counted

#: Between the names in the text of a label, and the text of a label without a name.
SEPARATOR, NONE = "|", "none"

#: Cells of a table by the name of their column.
Columns = Mapping[str, Sequence[str | None]]

# What a column of one of several labels may say; an empty cell is unknown.
_TRUTHS = {
    **dict.fromkeys(("1", "1.0", "true", "yes"), True),
    **dict.fromkeys(("0", "0.0", "false", "no"), False),
    "": None,
}

_NUM_RANGES = 4


@dataclasses.dataclass(frozen=True)  # so that the copies that workers get are equal
class LabelKind:
    """What an example's label can be; by default any number of names, a 0 or 1 for each.

    Attributes:
        name: in the manifest; a dataset of classes does not name it.
        format_version: the oldest version of the format that has such labels.
        noun: one label, in sentences; `plural` is several of them, `values` those of a record.
        flag: the flag of the build that names the labels.
        one_hot: whether each example has exactly one of the labels.
        is_number: whether the label is a number; then there are no classes to count.
    """

    name, format_version, noun, plural = "multi_label", 2, "label", "labels"
    values, flag, one_hot, is_number = "of 0 and 1", "--label_columns", False, False

    @property
    def entry(self) -> dict[str, str]:
        """What manifest.json, preprocessing.json and metrics.json say of the kind."""
        # Version 1 of the format has classes alone, and does not name them.
        return {} if self.format_version == 1 else {"label_kind": self.name}

    def read_columns(self, columns: Columns) -> tuple[list[str], dict[int, str]]:
        """Returns the texts of the labels in a user's table, and by row what cannot be a label.

        The text is "" for those, and where a cell is empty or None. A ValueError is raised if a
        cell shows that the column holds something else.
        """
        texts = []
        for row, cells in enumerate(zip(*columns.values(), strict=True), 1):
            truths = {}
            for name, cell in zip(columns, cells, strict=True):
                text = (cell or "").lower()
                if text not in _TRUTHS:
                    found = f"row {row:,} has {cell!a} in the column {name}"
                    hint = "; --uncertain says what -1 means" if text in ("-1", "-1.0") else ""
                    raise ValueError(f"{found}; expected 0 or 1{hint}")
                truths[name] = _TRUTHS[text]
            chosen = [name for name, is_true in truths.items() if is_true]
            texts.append("" if None in truths.values() else self.text_of(chosen))
        return texts, {}

    def names_in(self, text: str) -> list[str]:
        """Returns the names of the labels in a label's text; a number has none."""
        return [] if text == NONE else text.split(SEPARATOR)

    def is_label(self, values: np.ndarray) -> bool:
        """Tells whether the values of a record, float32 [num_labels], are a label."""
        return set(values.tolist()) <= {0.0, 1.0}

    def fits_counts(self, counts: Sequence[int], num_examples: int) -> bool:
        """Tells whether so many examples can have so many of each label."""
        return all(0 <= count <= num_examples for count in counts)

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

    def classes_of(
        self, texts: Sequence[str], codes: np.ndarray
    ) -> tuple[Sequence[str], np.ndarray]:
        """Divides examples into classes of the same label, or of similar numbers.

        Takes different texts, and the place of each example's text; returns the names of the
        classes, and the class of each example; both int64 [num_examples].
        """
        return texts, codes

    def balance(self, counts: np.ndarray, texts: Sequence[str]) -> np.ndarray:
        """Returns the numbers of which each split should have the same share.

        From int64 [num_groups, num_texts], the number of examples by the text of their label, it
        makes int64 [num_groups, num_numbers], which count each example equally often.
        """
        names = sorted({name for text in texts for name in self.names_in(text)})
        if self.one_hot or not names:
            return counts
        with_label = self.has(texts, names).astype(np.int64)
        return counts @ np.hstack([with_label, 1 - with_label])

    def describe(self, label_names: Sequence[str]) -> str:
        """Returns what labels a dataset has, such as `in 4 classes`."""
        return f"in {counted(len(label_names), self.noun, self.plural)}"


class OneClass(LabelKind):
    """Each example has one class, whose name is the text of its label."""

    name, format_version, noun, plural = "class", 1, "class", "classes"
    values, flag, one_hot = "one-hot", "--classes", True

    def read_columns(self, columns: Columns) -> tuple[list[str], dict[int, str]]:
        (cells,) = columns.values()
        return [cell or "" for cell in cells], {}

    def names_in(self, text: str) -> list[str]:
        return [text]

    def is_label(self, values: np.ndarray) -> bool:
        return sorted(values.tolist()) == [0.0] * (len(values) - 1) + [1.0]

    def fits_counts(self, counts: Sequence[int], num_examples: int) -> bool:
        return sum(counts) == num_examples


class OneGrade(OneClass):
    """Each example has one grade; their names are in ascending order."""

    name, format_version, noun, plural, flag = "grade", 2, "grade", "grades", "--grades"


class OneNumber(LabelKind):
    """Each example has a number, whose text is the shortest one that stands for its float32."""

    name, format_version, noun, plural = "number", 2, "number", "numbers"
    values, flag, is_number = "one finite number", "--target", True

    def read_columns(self, columns: Columns) -> tuple[list[str], dict[int, str]]:
        (cells,) = columns.values()
        texts = [number_text(cell) if cell else "" for cell in cells]
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


def number_text(text: str) -> str | None:
    """Returns the text of a number as tables hold it, or None if it is not finite as float32.

    >>> number_text("3.50")
    '3.5'
    """
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

    Returns their names in ascending order, such as `1.5 to 3`, and the range of each number, int64.
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


CLASSES, GRADES, MULTI_LABEL, NUMBER = KINDS = OneClass(), OneGrade(), LabelKind(), OneNumber()


def kind_in(content: Mapping[str, Any]) -> LabelKind:
    """Returns the kind that a JSON file names, see `LabelKind.entry`, or raises a ValueError."""
    kinds = {kind.name: kind for kind in KINDS}
    wanted = content.get("label_kind", CLASSES.name)
    # Of any type, as long as the manifest is not checked.
    if not isinstance(wanted, str) or wanted not in kinds:
        raise ValueError(f"label_kind must be one of {', '.join(kinds)}, received {wanted!r}")
    return kinds[wanted]
