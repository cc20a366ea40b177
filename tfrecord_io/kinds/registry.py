"""The kinds of label that a dataset can be stored with, by the names in its manifest.

>>> kind_in({"label_kind": "grade"}).plural
'grades'
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tfrecord_io.kinds.classes import CLASSES, GRADES
from tfrecord_io.kinds.label_kind import LabelKind
from tfrecord_io.kinds.multi_label import MULTI_LABEL
from tfrecord_io.kinds.numbers import NUMBER

KINDS: tuple[LabelKind, ...] = (CLASSES, GRADES, MULTI_LABEL, NUMBER)


def kind_in(content: Mapping[str, Any]) -> LabelKind:
    """Returns the kind that a JSON file names, see `LabelKind.entry`.

    Raises:
        ValueError: if the name is unknown.
    """
    wanted = content.get("label_kind", CLASSES.name)
    if found := [kind for kind in KINDS if kind.name == wanted]:
        return found[0]
    names = ", ".join(kind.name for kind in KINDS)
    raise ValueError(f"label_kind must be one of {names}, received {wanted!r}")
