"""Finds the row of each file in a table of labels, whose paths may be from another machine."""

from __future__ import annotations

import collections
import itertools
import posixpath
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

from pipelines import errors
from pipelines.listing.files import IMAGE_SUFFIXES
from pipelines.listing.images import Ledger, Note
from pipelines.listing.label_table import LabelTable
from pipelines.listing.refs import RejectedFile
from pipelines.listing.table_files import OPTIONAL

# How many pairs of a path and a file are shown, and how many files with the same end are compared.
_NUM_SHOWN, _MOST_ALIKE = 3, 1000


class Match(NamedTuple):
    """How the rows of a table fit the files of a source.

    Attributes:
        row_of_file: the row of each file, from 0; None for a file without one.
        files_of_row: the places of all files that a row could mean.
        ledger: rows without a file, and notes.
    """

    row_of_file: list[int | None]
    files_of_row: dict[int, list[int]]
    ledger: Ledger

    def rows_of(self, is_chosen: Sequence[bool]) -> set[int]:
        """Returns the rows that mean chosen files, and no other file."""
        found = self.files_of_row.items()
        return {row for row, some in found if some and all(is_chosen[place] for place in some)}


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
    paths = table.cells["path"]
    files, means = _find(names, paths)
    found = {row: _pictures(names, some) for row, some in means.items()}
    row_of_file: list[int | None] = [None] * len(names)
    num_repeated = _assign(row_of_file, names, found, table)
    near = {row: [names[k] for k in some] for row, some in found.items() if len(some) != 1}
    notes, rejects = list[Note](), list[RejectedFile]()
    if not all(near.values()):
        more, notes = _match_ends(files, row_of_file, near, table)
        num_repeated += more
    for row, others in near.items():
        shown = ", ".join(map(ascii, others[:2]))
        why = f"the source has no such file; it has files such as {names[0]!a}" if names else ""
        if len(others) > 1:
            why = f"{len(others):,} files end with this path, such as {shown}; give more of it"
        elif others:
            why = f"the source has no such file; that of {shown} has another row"
        detail = f"row {row + 1} of {table.name}: {why}"
        rejects.append(RejectedFile(paths[row], "missing_file", detail))
    if num_repeated:
        text = (
            f"{num_repeated:,} rows of the table of --labels repeat the label of a file; what its "
            "first row says in other columns is kept"
        )
        notes.append(Note(text))
    for place, row in enumerate(row_of_file):
        if row is not None:
            found[row].append(place)
    ledger = Ledger(num_files=len(rejects), rejects=tuple(rejects), notes=tuple(notes))
    return Match(row_of_file, found, ledger)


def find_files(names: Sequence[str], paths: Sequence[str]) -> dict[str, list[int]]:
    """Returns the places of the files that each path means, which may be none.

    That is the file of this name, or all files whose names end with the path, with or without the
    ending of the name; or all files below the folders of this name.
    """
    found = dict(zip(paths, _find(names, paths)[1].values(), strict=True))
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


def _find(names: Sequence[str], paths: Sequence[str]) -> tuple[_Ends, dict[int, list[int]]]:
    """Returns the names by their ends, and by row the places of a path's file or of such an end."""
    places = {name: place for place, name in enumerate(names)}
    files = _Ends(names if set(paths) - places.keys() else ())
    return files, {
        row: [places[path]] if path in places else files.with_end(path)
        for row, path in enumerate(paths)
    }


def _assign(
    rows: list[int | None], names: Sequence[str], found: Mapping[int, list[int]], table: LabelTable
) -> int:
    """Gives each file that is the only one of a row this row; returns how many repeat another."""
    num_repeated = 0
    for row, places in found.items():
        if len(places) != 1:
            continue
        other = rows[places[0]]
        if other is None:
            rows[places[0]] = row
        elif table.facts(other) == table.facts(row):
            num_repeated += 1
        else:
            raise errors.UserError(
                f"--labels {table.name}: rows {other + 1:,} and {row + 1:,} both name "
                f"{names[places[0]]!a}, and differ in one of label, {', '.join(OPTIONAL)}; a file "
                "needs one row"
            )
    return num_repeated


def _pictures(names: Sequence[str], places: list[int]) -> list[int]:
    """Keeps the pictures of several files: beside one there may be a text of the same name."""
    pictures = [k for k in places if names[k].lower().endswith(IMAGE_SUFFIXES)]
    return (pictures or places) if len(places) > 1 else places


def _match_ends(
    files: _Ends,
    row_of_file: list[int | None],
    near: dict[int, list[str]],
    table: LabelTable,
) -> tuple[int, list[Note]]:
    """Matches the rows without a file by the longest end of their path; see `match_files`.

    Takes matched rows out of `near`, and puts there what others could mean. Returns how many rows
    repeat another one, and what the user should know.
    """
    names, paths = files.names, table.cells["path"]
    rows = [row for row, others in near.items() if not others]
    folders = sorted({folder for name in names for folder in _folders_of(name)})
    parts = {part for folder in folders for part in folder.lower().split("/")}
    found = {row: _pictures(names, files.nearest(paths[row], parts)) for row in rows}
    # Rows of different folders may mean different files of one name, so none of them is sure.
    claims = collections.Counter(place for places in found.values() for place in places)
    meant: dict[int, str] = {}
    for row, places in found.items():
        near[row] = [names[place] for place in places]
        if len(places) == 1 == claims[places[0]] and row_of_file[places[0]] is None:
            row_of_file[places[0]], meant[row] = row, near[row][0]
    ends = _Ends(folders, has_endings=False)
    of_folder = {row: ends.nearest(paths[row].strip("/"), parts) for row in rows if not near[row]}
    row_of_folder: list[int | None] = [None] * len(folders)
    num_repeated = _assign(row_of_folder, folders, of_folder, table)
    for row, places in of_folder.items():
        near[row] = [f"{folders[place]}/" for place in places]
        if len(places) == 1:
            meant[row] = near[row][0]
    told = dict(zip(folders, row_of_folder, strict=True))
    for place, name in enumerate(names):
        if row_of_file[place] is None:
            above = (told[folder] for folder in _folders_of(name))
            row_of_file[place] = next((row for row in above if row is not None), None)
    for row in meant:
        del near[row]
    if not meant:
        return num_repeated, []
    pairs = [f"{paths[row]!a} is {name!a}" for row, name in meant.items()]
    text = (
        f"{len(meant):,} rows of the table of --labels were matched by the end of their path: "
        f"{', '.join(pairs[:_NUM_SHOWN])}"
    )
    return num_repeated, [Note(text, is_private=True)]


def _folders_of(name: str) -> Iterator[str]:
    """Yields the folders above a file, innermost first."""
    while name := posixpath.dirname(name):
        yield name


def _split_ending(name: str) -> tuple[str, str]:
    """Returns a name and its ending, which the row of a file, as in `a.parquet#3`, is not."""
    stem, ending = posixpath.splitext(name)
    return (name, "") if "#" in ending else (stem, ending)


def _are_in_order(some: Sequence[str], parts: Sequence[str]) -> bool:
    """Returns whether the parts hold some others, in their order."""
    rest = iter(parts)
    return all(part in rest for part in some)


class _Ends:
    """Names by the ends of their paths, in lower case and, if they have some, without endings."""

    def __init__(self, names: Sequence[str], *, has_endings: bool = True) -> None:
        self.names = names
        self._has_endings = has_endings
        self._places = collections.defaultdict[str, list[int]](list)
        for place, name in enumerate(names):
            for end in self._ends(name):
                self._places[end].append(place)

    def _ends(self, path: str) -> list[str]:
        """Returns the ends of a path, the longest first: a/b/1, b/1 and 1 of A/b/1.png."""
        path = path.lower()
        parts = (_split_ending(path)[0] if self._has_endings else path).split("/")
        return ["/".join(parts[start:]) for start in range(len(parts))]

    def with_end(self, path: str) -> list[int]:
        """Returns the places of the names that end with a path, with or else without its ending."""
        for end, parts in ((self._ends(path)[0], 2), (path.lower(), 1)):
            alike = self._places.get(end, [])[:_MOST_ALIKE]
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
        ends = self._ends(path)
        shared = next((end for end in ends if end in self._places), None)
        if shared is None:
            return []
        found = self._places[shared][:_MOST_ALIKE]
        above = ends[0][: -len(shared)].split("/")[:-1]
        if above and above[-1] in folders:
            wanted = [folder for folder in above if folder in folders]
            below = (self.names[k].lower().split("/")[:-1] for k in found)
            found = [*itertools.compress(found, (_are_in_order(wanted, some) for some in below))]
        found = [k for k in found if self._ends(self.names[k])[0] == ends[0]] or found
        ending = _split_ending(path)[1].lower()
        return [k for k in found if ending and self.names[k].lower().endswith(ending)] or found
