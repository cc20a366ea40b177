"""One class for each example, whose label is one-hot, and grades: classes in ascending order.

>>> CLASSES.vectors(["CNV", "NORMAL"], ["CNV", "NORMAL"]).tolist()
[[1.0, 0.0], [0.0, 1.0]]
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from tfrecord_io.kinds.label_kind import LabelKind


class Classes(LabelKind):
    """Each example has one class, whose name is the text of its label."""

    name, format_version, noun, plural = "class", 1, "class", "classes"
    values, flag, one_hot = "one-hot", "--classes", True

    def read_columns(
        self, columns: Mapping[str, Sequence[str | None]]
    ) -> tuple[list[str], dict[int, str]]:
        (cells,) = columns.values()
        # A blank cell of a spreadsheet is not a class.
        return [cell if cell and cell.strip() else "" for cell in cells], {}

    def names_in(self, text: str) -> list[str]:
        return [text]

    def is_label(self, values: np.ndarray) -> bool:
        return sorted(values.tolist()) == [0.0] * (len(values) - 1) + [1.0]

    def fits_counts(self, counts: Sequence[int], num_examples: int) -> bool:
        return sum(counts) == num_examples


class Grades(Classes):
    """Each example has one grade; their names are in ascending order."""

    name, format_version, noun, plural, flag = "grade", 2, "grade", "grades", "--grades"


CLASSES, GRADES = Classes(), Grades()
