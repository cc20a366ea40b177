"""Any number of labels for each example, as a 0 or 1 for each label.

Their text is their names with `|` between them, in the dataset's order, or `none`.

>>> MULTI_LABEL.vectors(["CNV|DRUSEN", "none"], ["CNV", "DME", "DRUSEN"]).tolist()
[[1.0, 0.0, 1.0], [0.0, 0.0, 0.0]]
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from tfrecord_io.kinds.label_kind import NONE, SEPARATOR, LabelKind

# What a label's column may say; an empty cell is unknown.
_TRUTHS = {
    **dict.fromkeys(("1", "1.0", "true", "yes"), True),
    **dict.fromkeys(("0", "0.0", "false", "no"), False),
    "": None,
}


class MultiLabel(LabelKind):
    """Each example has any number of the labels."""

    name, format_version, noun, plural = "multi_label", 2, "label", "labels"
    values, flag = "of 0 and 1", "--label_columns"

    def read_columns(
        self, columns: Mapping[str, Sequence[str | None]]
    ) -> tuple[list[str], dict[int, str]]:
        texts = []
        for row, cells in enumerate(zip(*columns.values(), strict=True), 1):
            truths = {}
            for name, cell in zip(columns, cells, strict=True):
                text = (cell or "").strip().lower()
                if text not in _TRUTHS:
                    found = f"row {row:,} has {cell!a} in the column {name}"
                    raise ValueError(f"{found}; expected 0 or 1")
                truths[name] = _TRUTHS[text]
            chosen = [name for name, is_true in truths.items() if is_true]
            texts.append("" if None in truths.values() else self.text_of(chosen))
        return texts, {}

    def names_in(self, text: str) -> list[str]:
        return [] if text == NONE else text.split(SEPARATOR)

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


MULTI_LABEL = MultiLabel()
