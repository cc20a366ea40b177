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
from collections.abc import Collection, Mapping
from typing import Any

import pyarrow as pa

from pipelines.listing.refs import BATCH_ROWS, REF_SCHEMA, RejectedFile
from tfrecord_io.decoding.rejects import MAX_DETAIL_LENGTH, what_is
from tfrecord_io.terminal.printing import counted, printable


@dataclasses.dataclass(frozen=True, kw_only=True)
class Ledger:
    """The files that are not images of the table, and notes; ledgers of several steps add up.

    Attributes:
        num_files: number of files seen; each frame of a file with several counts as a file.
        rejects: files that should be images of a class but cannot be used.
        ignored: number of files that are not data, by reason.
        excluded: number of images and other files that the user left out.
        copies: number of files in a second tree that repeat a listed one.
        notes: sentences that the user should know; they may name files of the input.
    """

    num_files: int = 0
    rejects: tuple[RejectedFile, ...] = ()
    ignored: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    excluded: int = 0
    copies: int = 0
    notes: tuple[str, ...] = ()

    def __add__(self, more: Ledger) -> Ledger:
        names = (field.name for field in dataclasses.fields(self))
        return Ledger(**{name: getattr(self, name) + getattr(more, name) for name in names})

    @classmethod
    def of_others(cls, names: Collection[str]) -> Ledger:
        """Returns the ledger of files without the name of an image; a note for each known kind."""
        kinds = collections.defaultdict[str, list[str]](list)
        for name in names:
            if kind := what_is(name):
                kinds[kind].append(name)
        notes = tuple(
            f"not read: {counted(len(alike), 'file')} such as {printable(min(alike))}: {kind}"
            for kind, alike in sorted(kinds.items())
        )
        return cls(ignored=collections.Counter(no_image_name=len(names)), notes=notes)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Images:
    """The images of a source. Each file of it is counted once, in the table or in the ledger.

    Attributes:
        table: a table of `REF_SCHEMA` and other columns, sorted by path.
        ledger: all other files.
        layout: the role of each level of folders, and its names, see `classes.with_classes`.
        label_names: the names of the labels, in the order of their indices.
        reject_patients: the patients of rejects, by path, where a table names them.
        source: the source's entry in the manifest.
        identity: what decided the labels and the patients, by flag.
    """

    table: pa.Table
    ledger: Ledger
    layout: tuple[tuple[str, str], ...] = ()
    label_names: tuple[str, ...] = ()
    reject_patients: Mapping[str, str] = dataclasses.field(default_factory=dict)
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
        changed = {"ledger": self.ledger + found} if found else {}
        table = self.table if table is None else table
        return dataclasses.replace(self, table=table, **changed, **facts)

    def noted(self, *notes: str) -> Images:
        """Returns the images with more notes."""
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
        ignored = collections.Counter(dict(sorted((+self.ledger.ignored).items())))
        ledger = dataclasses.replace(self.ledger, rejects=tuple(rejects), ignored=ignored)
        parts = self.table.num_rows + len(rejects) + ledger.excluded + ledger.copies
        parts += ignored.total()
        if parts != ledger.num_files:
            raise RuntimeError(
                f"the listing saw {ledger.num_files} files, but {parts} are accounted for; this is "
                "a bug, please report it"
            )
        return dataclasses.replace(self, ledger=ledger)
