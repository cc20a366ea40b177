"""The table of labels that the options name, if they name one."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable

from pipelines import errors
from pipelines.listing.label_cells import combined_in
from pipelines.listing.label_table import LabelTable, read_label_table, read_names
from pipelines.listing.options import ListingOptions
from tfrecord_io.format import kinds


@dataclasses.dataclass(frozen=True)
class Labels:
    """The table of `--labels`, or of the source's own files, which is read once when it is needed.

    Attributes:
        options: name the table.
        left_out: rows, from 0, without which it is read, as if they were not in the file.
    """

    options: ListingOptions
    left_out: frozenset[int] = frozenset()

    @functools.cached_property
    def table(self) -> LabelTable | None:
        """The table; None if there is none.

        Raises:
            errors.UserError: if it cannot be used, see `read_label_table`.
        """
        options = self.options
        if not options.tables:
            return None
        table = read_label_table(options, self.left_out)
        is_free = options.label_kind == kinds.CLASSES
        is_free = is_free and not options.classes and not options.one_class
        if is_free and (combined := combined_in(dict.fromkeys(table.cells["label"]))):
            separator, name, has_others = combined
            text = (
                f"the label {name!a} may be several; --label_separator '{separator}' divides it, "
                "and --classes names the classes if it is one"
            )
            if has_others or options.rows:
                raise errors.UserError(f"--labels {table.name}: {text}")
            return dataclasses.replace(table, notes=(*table.notes, text))
        return table

    @functools.cached_property
    def names(self) -> LabelTable | None:
        """What `read_names` reads of the table; its other cells are not looked at.

        Raises:
            errors.UserError: if the file cannot be read or lacks a column.
        """
        return read_names(self.options, self.left_out) if self.options.tables else None

    def without(self, rows: Iterable[int]) -> Labels:
        """Returns the table without some more of its rows, which are counted as it is now."""
        rows = {*rows}
        if not rows or self.names is None:
            return self
        num_rows = len(self.names.cells["path"]) + len(self.left_out)
        present = [row for row in range(num_rows) if row not in self.left_out]
        return dataclasses.replace(self, left_out=self.left_out.union(present[row] for row in rows))


def open_labels(options: ListingOptions) -> Labels:
    """Reads the table of labels now, as far as it can be checked before the files are listed.

    Raises:
        errors.UserError: if it cannot be used.
    """
    labels = Labels(options)
    # A fault in what is excluded is none.
    is_whole = not (options.exclude or options.exclude_regex)
    return labels if (labels.table if is_whole else labels.names) else Labels(options)
