"""Renames and joins classes (`--rename_classes`); `--classes` chooses among the new names."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping

import pyarrow as pa

from pipelines import errors
from pipelines.listing.images import Images
from pipelines.listing.options import pairs
from tfrecord_io.format.kinds import MULTI_LABEL, NONE, SEPARATOR, LabelKind
from tfrecord_io.terminal.flags import flag
from tfrecord_io.terminal.printing import in_one_form, listed


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """New names of classes."""

    rename_classes: dict[str, str] | None = flag(
        None,
        "new names of classes; two with one name are joined; --classes takes the new names",
        parse=lambda text: in_one_form(pairs(text, str.rpartition)),
        expected="OLD=NEW,... such as cnv=CNV,DRUSEN=AMD",
        metavar="OLD=NEW,...",
    )


def renamed(images: Images, names: Mapping[str, str], kind: LabelKind) -> Images:
    """Returns the images with new names of labels, by the old names; two may get the same one.

    Raises:
        errors.UserError: if no image and no column has an old name, or a new one cannot be.
    """
    if kind == MULTI_LABEL and {SEPARATOR, NONE} & {*"".join(names.values()), *names.values()}:
        raise errors.UserError(
            f"--rename_classes takes no new name with {SEPARATOR}, and not {NONE}"
        )
    labels = images.table["label"].cast(pa.string()).combine_chunks().dictionary_encode()
    texts = [kind.names_in(text) for text in labels.dictionary.to_pylist()]
    present = {*images.label_names}.union(*texts)
    if absent := sorted(names.keys() - present):
        raise errors.UserError(
            f"--rename_classes names {listed(list(map(repr, absent)), 10)}, but the "
            f"{kind.plural} are {listed(list(map(repr, sorted(present))), 10)}"
        )

    def new(some: Iterable[str]) -> tuple[str, ...]:
        return tuple(dict.fromkeys(names.get(name, name) for name in some))

    order = new(images.label_names)
    found = [sorted(new(labels), key=order.index) if order else new(labels) for labels in texts]
    column = pa.array(map(kind.text_of, found), pa.string()).take(labels.indices)
    images = images.with_column("label", column.dictionary_encode())
    identity = {**images.identity, "rename_classes": dict(names)}
    return images.then(label_names=order, identity=identity)
