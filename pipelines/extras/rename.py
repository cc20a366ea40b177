"""Renames and joins classes (`--rename_classes`), for whoever needs those of another dataset."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar

import pyarrow as pa

from pipelines import errors
from pipelines.listing.images import Images
from pipelines.listing.options import pairs
from pipelines.options import BuildOptions
from tfrecord_io.format import kinds
from tfrecord_io.format.kinds import NONE, SEPARATOR, LabelKind
from tfrecord_io.terminal.flags import flag
from tfrecord_io.terminal.printing import listed
from tfrecord_io.terminal.spelling import in_one_form, written


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """New names of classes."""

    heading: ClassVar = "input"

    rename_classes: dict[str, str] | None = flag(
        None,
        "new names of classes; two with one name are joined; --classes takes the new names",
        parse=lambda text: in_one_form(pairs(text, str.rpartition)),
        expected="OLD=NEW,... such as cnv=CNV,DRUSEN=AMD",
        metavar="OLD=NEW,...",
        adds_up=True,
    )


def renaming(list_images: Callable[..., Images], options: BuildOptions) -> Callable[..., Images]:
    """Returns a function that lists a source as `list_images` does, with other names of labels.

    They are renamed before they are chosen, counted and checked: `--classes` has the new names.

    Raises:
        errors.UserError: if labels of this kind have no names, or cannot have a new one.
    """
    names, kind = options.of(Options).rename_classes, options.listing.label_kind
    if not names:
        return list_images
    if kind.is_number:
        raise errors.UserError(
            "--rename_classes is for classes; --target names a column of numbers"
        )
    new = "".join(names.values())
    if kind == kinds.MULTI_LABEL and (SEPARATOR in new or NONE in names.values()):
        raise errors.UserError(
            f"--rename_classes takes no new name with {SEPARATOR}, and not {NONE}"
        )
    relabel = functools.partial(renamed, names=names, kind=kind)

    def list_renamed(*args: Any) -> Images:
        images = list_images(*args, relabel=relabel)
        return images.then(identity={**images.identity, "rename_classes": dict(names)})

    return list_renamed


def renamed(images: Images, names: Mapping[str, str], kind: LabelKind) -> Images:
    """Returns the images with new names of labels, by the old names; two may get the same one.

    An old name may be given as `spelling.written` shows it.

    Raises:
        errors.UserError: if no image and no column has an old name.
    """
    labels = images.table["label"].cast(pa.string()).combine_chunks().dictionary_encode()
    texts = [kind.names_in(text) for text in labels.dictionary.to_pylist()]
    present = {name for some in (images.label_names, *texts) for name in some}
    shown = {written(name): name for name in present}
    meant = {old if old in present else shown.get(old, old): new for old, new in names.items()}
    if absent := sorted(meant.keys() - present):
        raise errors.UserError(
            f"--rename_classes names {listed(list(map(repr, absent)), 10)}, but the "
            f"{kind.plural} are {listed(list(map(repr, sorted(shown))), 10)}"
        )

    def new(some: Iterable[str]) -> tuple[str, ...]:
        return tuple(dict.fromkeys(meant.get(name, name) for name in some))

    order = new(images.label_names)
    found = [sorted(new(some), key=order.index) if order else new(some) for some in texts]
    column = pa.array(map(kind.text_of, found), pa.string()).take(labels.indices)
    place = images.table.schema.get_field_index("label")
    table = images.table.set_column(place, "label", column.dictionary_encode())
    return images.then(table, label_names=order)
