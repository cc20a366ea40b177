"""Finds the row of each file in a table of labels, whose paths may be from another machine."""

from __future__ import annotations

import bisect
import collections
import functools
import itertools
import posixpath
from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

from pipelines import errors
from pipelines.listing.files import folders_above
from pipelines.listing.images import Ledger, Note
from pipelines.listing.label_table import LabelTable
from pipelines.listing.refs import RejectedFile
from pipelines.listing.table_files import OPTIONAL
from tfrecord_io.decoding.preprocess import IMAGE_SUFFIXES

# How many pairs of a path and a file are shown, and how many files with the same end are compared.
_NUM_SHOWN, _MOST_ALIKE = 3, 1000


class Match(NamedTuple):
    """How the rows of a table fit the files of a source.

    Attributes:
        row_of_file: the row of each file, from 0; None for a file without one.
        others: (place of a file, row) for each row that repeats that of the file, or could mean
            several files.
        ledger: rows without a file, and notes.
    """

    row_of_file: Sequence[int | None]
    others: Sequence[tuple[int, int]]
    ledger: Ledger

    def rows_of(self, is_chosen: Sequence[bool]) -> set[int]:
        """Returns the rows that mean chosen files, and no other file."""
        chosen, rest = set[int](), set[int]()
        for place, row in itertools.chain(enumerate(self.row_of_file), self.others):
            if row is not None:
                (chosen if is_chosen[place] else rest).add(row)
        return chosen - rest


def match_files(names: Sequence[str], table: LabelTable) -> Match:
    """Finds the row of each file.

    A row belongs to the file whose name in the source is its path. If there is none, it belongs to
    the file whose name ends with its path, if there is only one, with or without the ending of the
    name. macOS writes an umlaut of a file's name as two characters, and a spreadsheet as one.

    If there is none either, as with `/kaggle/input/CNV/1.png`, it belongs to the file that shares
    the longest end of its path, whatever the case and the ending, if no other file or row does. If
    no file does, it belongs to such a folder, and holds for the files below that have no row.

    The ledger has each row without a file, and notes on rows that repeat another one, and on
    rows that were matched by the end of their path or name a folder.

    Raises:
        errors.UserError: if two rows say different things of one file or folder.
    """
    paths, files = table.cells["path"], _Names(names)
    # What a row that has no file could mean.
    near, several = dict[int, tuple[str, ...]](), list[tuple[int, int]]()
    for row, path in enumerate(paths):
        places = files.pictures(files.meant_by(path))
        if len(places) == 1:
            files.give(places[0], row, table)
        else:
            near[row] = tuple(names[place] for place in places)
            several += [(place, row) for place in places]
    others = [*several, *files.repeated]
    notes = [] if all(near.values()) else _match_ends(files, near, table)
    rejects = list[RejectedFile]()
    for row, some in near.items():
        shown = ", ".join(map(ascii, some[:2]))
        why = f"the source has no such file; it has files such as {names[0]!a}" if names else ""
        if len(some) > 1:
            why = f"{len(some):,} files end with this path, such as {shown}; give more of it"
        elif some:
            why = f"the source has no such file; that of {shown} has another row"
        detail = f"row {row + 1} of {table.name}: {why}"
        rejects.append(RejectedFile(paths[row], "missing_file", detail))
    if files.repeated:
        text = (
            f"{len(files.repeated):,} rows of the table of --labels repeat the label of a file; "
            "what its first row says in other columns is kept"
        )
        notes.append(Note(text))
    ledger = Ledger(num_files=len(rejects), rejects=tuple(rejects), notes=tuple(notes))
    return Match(files.rows, others, ledger)


def find_files(names: Sequence[str], paths: Collection[str]) -> dict[str, list[int]]:
    """Returns the places of the files that each path means, which may be none.

    That is the file of this name, or all files whose names end with the path, with or without the
    ending of the name; or all files below the folders of this name.
    """
    files = _Names(names)
    found = {path: files.meant_by(path) for path in paths}
    folders = {path.rstrip("/"): places for path, places in found.items() if not places}
    for place, name in enumerate(names if folders else ()):
        for folder in folders.keys() & {*folders_in(name)}:
            folders[folder].append(place)
    return found


def folders_in(name: str) -> Iterator[str]:
    """Yields the folders on a file's path: `a`, `a/b` and `b` of `a/b/1.png`."""
    parts = name.split("/")[:-1]
    for start in range(len(parts)):
        yield from itertools.accumulate(parts[start:], "{}/{}".format)


def _match_ends(files: _Names, near: dict[int, tuple[str, ...]], table: LabelTable) -> list[Note]:
    """Matches the rows without a file by the longest end of their path; see `match_files`.

    Takes matched rows out of `near`, and puts there what others could mean. Returns a note.
    """
    names, paths, num_rows = files.names, table.cells["path"], len(near)
    folders = _Names(sorted({folder for name in names for folder in folders_above(name)}),
                     has_endings=False)  # fmt: skip
    parts = {part for folder in folders.names for part in folder.lower().split("/")}
    found = {row: files.pictures(files.nearest(paths[row], parts))
             for row, some in near.items() if not some}  # fmt: skip
    # Rows of different folders may mean different files of one name, so none of them is sure.
    claims = collections.Counter(place for places in found.values() for place in places)
    shown = list[str]()

    def take_out(row: int, name: str) -> None:
        del near[row]
        if len(shown) < _NUM_SHOWN:
            shown.append(f"{paths[row]!a} is {name!a}")

    for row, places in found.items():
        if len(places) == 1 == claims[places[0]] and files.rows[places[0]] is None:
            files.rows[places[0]] = row
            take_out(row, names[places[0]])
        else:
            near[row] = tuple(names[place] for place in places)
    lost = [row for row, places in found.items() if not places]
    for row in lost:
        places = folders.nearest(paths[row].strip("/"), parts)
        near[row] = tuple(f"{folders.names[place]}/" for place in places)
        if len(places) == 1:
            folders.give(places[0], row, table)
            take_out(row, near[row][0])
    files.repeated += folders.repeated
    told = dict(zip(folders.names, folders.rows, strict=True))
    for place, name in enumerate(names if lost else ()):
        if files.rows[place] is None:
            above = (told[folder] for folder in folders_above(name))
            files.rows[place] = next((row for row in above if row is not None), None)
    if not shown:
        return []
    text = (
        f"{num_rows - len(near):,} rows of the table of --labels were matched by the end of their "
        f"path: {', '.join(shown)}"
    )
    return [Note(text, is_private=True)]


def _split_ending(name: str) -> tuple[str, str]:
    """Returns a name and its ending, which the row of a file, as in `a.parquet#3`, is not."""
    stem, ending = posixpath.splitext(name)
    return (name, "") if "#" in ending else (stem, ending)


def _are_in_order(some: Sequence[str], parts: Sequence[str]) -> bool:
    """Returns whether the parts hold some others, in their order."""
    rest = iter(parts)
    return all(part in rest for part in some)


class _Names:
    """Names of files or folders, which are found by the ends of paths, and the row of each.

    Attributes:
        rows: the row of each name; None without one.
        repeated: place and row, if a row says the same of a name as its first one.
    """

    def __init__(self, names: Sequence[str], *, has_endings: bool = True) -> None:
        self.names, self.rows = names, list[int | None]([None] * len(names))
        self.repeated = list[tuple[int, int]]()
        self._has_endings = has_endings
        self._places = {name: place for place, name in enumerate(names)}

    def give(self, place: int, row: int, table: LabelTable) -> None:
        """Gives a name its row, or notes that the row repeats that which it has."""
        other = self.rows[place]
        if other is None:
            self.rows[place] = row
        elif table.facts(other) == table.facts(row):
            self.repeated.append((place, row))
        else:
            raise errors.UserError(
                f"--labels {table.name}: rows {other + 1:,} and {row + 1:,} both name "
                f"{self.names[place]!a}, and differ in one of label, {', '.join(OPTIONAL)}; a file "
                "needs one row"
            )

    def pictures(self, places: list[int]) -> list[int]:
        """Keeps the pictures of several files: beside one there may be a text of the same name."""
        if len(places) < 2:
            return places
        return [k for k in places if self.names[k].lower().endswith(IMAGE_SUFFIXES)] or places

    def meant_by(self, path: str) -> list[int]:
        """Returns the places of the name that is a path, or of all that end with it.

        These have the path's ending, or else any, behind the path.
        """
        if path in self._places:
            return [self._places[path]]
        for end, parts in ((self._parts(path), 2), (path.lower().split("/"), 1)):
            alike = self._with_end(end)
            names = ("".join(_split_ending(f"/{self.names[k]}")[:parts]) for k in alike)
            fits = (name.endswith(f"/{path}") for name in names)
            if found := [*itertools.compress(alike, fits)]:
                return found
        return []

    def nearest(self, path: str, folders: Collection[str]) -> list[int]:
        """Returns the places of the names that share the longest end with a path.

        Where the path's next folder is one of `folders`, they are below it and below all others of
        the path that are in `folders`: a table in Test/ with `1.png` may mean Test/images/1.png.
        """
        parts, found, start = self._parts(path), list[int](), -1
        while not found and (start := start + 1) < len(parts):
            found = self._with_end(parts[start:])
        above = parts[:start]
        if above and above[-1] in folders:
            wanted = [folder for folder in above if folder in folders]
            below = (self.names[k].lower().split("/")[:-1] for k in found)
            found = [*itertools.compress(found, (_are_in_order(wanted, some) for some in below))]
        found = [k for k in found if self._parts(self.names[k]) == parts] or found
        ending = _split_ending(path)[1].lower()
        return [k for k in found if ending and self.names[k].lower().endswith(ending)] or found

    def _parts(self, path: str) -> list[str]:
        """Returns the parts of a path in lower case, the last one without its ending, if any."""
        path = path.lower()
        return (_split_ending(path)[0] if self._has_endings else path).split("/")

    @functools.cached_property
    def _sorted(self) -> tuple[list[str], list[int]]:
        """The names by their parts from the last to the first, sorted, and the place of each."""
        # One text a name: a dictionary of all ends would take several times the memory.
        keys = ["/".join([*self._parts(name)[::-1], ""]) for name in self.names]
        places = sorted(range(len(keys)), key=keys.__getitem__)
        return [keys[place] for place in places], places

    def _with_end(self, parts: Sequence[str]) -> list[int]:
        """Returns the places of the names whose last parts are these."""
        keys, places = self._sorted
        end = "/".join(parts[::-1])
        first, last = (bisect.bisect_left(keys, f"{end}{mark}") for mark in "/0")  # 0 follows /
        return sorted(places[first : min(last, first + _MOST_ALIKE)])
