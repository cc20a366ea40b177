"""What a listing returns: a table with a row an image, and a ledger of all other files.

Both are values. A step of the listing takes `Images` and returns others, in which its findings are
added to the ledger:

>>> images = Images(table=REF_SCHEMA.empty_table(), ledger=Ledger(num_files=2))
>>> images.then(found=Ledger(copies=1)).then(found=Ledger(copies=1)).ledger.copies
2
"""

from __future__ import annotations

import collections
import dataclasses
import hashlib
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import pyarrow as pa

from pipelines.listing.refs import BATCH_ROWS, REF_SCHEMA, RejectedFile
from tfrecord_io.decoding.rejects import MAX_DETAIL_LENGTH, what_is
from tfrecord_io.terminal.printing import counted, printable


class Note(NamedTuple):
    """A sentence that the user should know.

    Attributes:
        text: the sentence.
        is_private: whether it names files, folders or columns of the input.
        is_stored: whether the dataset keeps it, or only the terminal shows it.
    """

    text: str
    is_private: bool = False
    is_stored: bool = True


@dataclasses.dataclass(frozen=True, kw_only=True)
class Ledger:
    """The files that are not images of the table, and notes; ledgers of several steps add up.

    Attributes:
        num_files: number of files seen; each frame of a file with several counts as a file.
        rejects: files that should be images of a class but cannot be used.
        ignored: number of files that are not data, by reason.
        others: the names of those of a known kind, by what they are and what to do with them.
        excluded: number of images and other files that the user left out.
        copies: number of files in a second tree that repeat a listed one.
        notes: what the user should know.
    """

    num_files: int = 0
    rejects: tuple[RejectedFile, ...] = ()
    ignored: Mapping[str, int] = dataclasses.field(default_factory=dict)
    others: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    excluded: int = 0
    copies: int = 0
    notes: tuple[Note, ...] = ()

    def __add__(self, more: Ledger) -> Ledger:
        names = (field.name for field in dataclasses.fields(self))
        return Ledger(**{name: _sum(getattr(self, name), getattr(more, name)) for name in names})

    @classmethod
    def of_others(cls, names: Iterable[str]) -> Ledger:
        """Returns the ledger of files that do not have the name of an image."""
        others, count = collections.defaultdict[str, list[str]](list), 0
        for name in names:
            count += 1
            if kind := what_is(name):
                others[kind].append(name)
        found = {kind: tuple(alike) for kind, alike in others.items()}
        return cls(ignored={"no_image_name": count}, others=found)

    @property
    def unread(self) -> tuple[str, ...]:
        """What the files are that are not images, one sentence each."""
        return tuple(
            f"not read: {counted(len(names), 'file')} such as {printable(min(names))}: {kind}"
            for kind, names in sorted(self.others.items())
        )


def _sum(one: Any, more: Any) -> Any:
    if not isinstance(one, Mapping):
        return one + more
    return one | {key: one[key] + value if key in one else value for key, value in more.items()}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Images:
    """The images of a source. Each file of it is counted once, in the table or in the ledger.

    Attributes:
        table: a table of `REF_SCHEMA` and other columns, sorted by path.
        ledger: all other files.
        layout: the role of each level of folders, and its names, see `classes.with_classes`.
        label_names: the names of the labels, in the order of their indices.
        reject_patients: the patients of rejects, by path, where a table names them.
        split_seed: the seed that made the splits, once they are made.
        source: the source's entry in the manifest.
        identity: what decided the labels and the patients, by flag.
    """

    table: pa.Table
    ledger: Ledger
    layout: tuple[tuple[str, str], ...] = ()
    label_names: tuple[str, ...] = ()
    reject_patients: Mapping[str, str] = dataclasses.field(default_factory=dict)
    split_seed: int | None = None
    source: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    identity: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def has_dicom(self) -> bool:
        """Whether some images are frames of DICOM files."""
        return self.table["frame"].null_count < self.table.num_rows

    def then(
        self, table: pa.Table | None = None, found: Ledger | None = None, **facts: Any
    ) -> Images:
        """Returns other images: another table, what was found added, and fields in `facts`."""
        ledger = self.ledger + found if found else self.ledger
        table = self.table if table is None else table
        return dataclasses.replace(self, table=table, ledger=ledger, **facts)

    def noted(self, *texts: str, is_private: bool = True, is_stored: bool = True) -> Images:
        """Returns the images with more notes, see `Note`."""
        notes = tuple(Note(text, is_private, is_stored) for text in texts)
        return self.then(found=Ledger(notes=notes))

    def with_column(self, name: str, column: pa.Array | pa.ChunkedArray) -> Images:
        """Returns the images with other values in a column of `REF_SCHEMA`."""
        place = REF_SCHEMA.get_field_index(name)
        return self.then(self.table.set_column(place, name, column))

    @property
    def digest(self) -> str:
        """Hexadecimal SHA-256 of the names, sizes and versions of all images, and their facts.

        It does not depend on where the images are in an archive.
        """
        digest = hashlib.sha256()
        for batch in self.table.to_batches(BATCH_ROWS):
            for field in batch.schema:
                column = batch.column(field.name)
                if field.name in ("offset", "stored_size"):
                    continue
                if pa.types.is_integer(field.type):
                    numbers = column.fill_null(0).to_numpy(zero_copy_only=False)
                    digest.update(numbers.astype("<i8").tobytes())
                else:
                    # No name has a zero byte, so it can mark the end of each; 1 stands for null.
                    cells = ("\1" if cell is None else str(cell) for cell in column.to_pylist())
                    digest.update("\0".join([field.name, *cells, ""]).encode())
        return digest.hexdigest()

    def checked(self) -> Images:
        """Returns the images if each file is counted once; rejects are sorted and printable."""
        rejects = sorted(
            RejectedFile(
                printable(file.source_path), file.reason, printable(file.detail, MAX_DETAIL_LENGTH)
            )
            for file in self.ledger.rejects
        )
        ignored = {reason: count for reason, count in sorted(self.ledger.ignored.items()) if count}
        ledger = dataclasses.replace(self.ledger, rejects=tuple(rejects), ignored=ignored)
        parts = self.table.num_rows + len(rejects) + ledger.excluded + ledger.copies
        parts += sum(ignored.values())
        if parts != ledger.num_files:
            raise RuntimeError(
                f"the listing saw {ledger.num_files} files, but {parts} are accounted for; this is "
                "a bug, please report it"
            )
        return dataclasses.replace(self, ledger=ledger)
