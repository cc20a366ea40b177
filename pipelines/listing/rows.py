"""Gives each file its row in a table of labels.

A row's file is the one whose path in the input is the row's path, or else the only file whose path
ends with it, with or without its ending. A path that several files end with is refused.

>>> files_of(["a/1.png", "b/1.png", "b/2.png"], ["b/1.png", "2", "1.png", "3.png"])
[[1], [2], [0, 1], ()]
"""

from __future__ import annotations

import collections
import posixpath
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from pipelines import errors
from pipelines.listing.files import common_folders, ending_of, without_label
from pipelines.listing.images import Images, Ledger
from pipelines.listing.options import ListingOptions
from pipelines.listing.refs import OTHER, RejectedFile, make_refs
from pipelines.listing.table import LabelTable
from tfrecord_io.terminal.printing import counted

_SITE = f"{OTHER}site"


def files_of(names: Sequence[str], paths: Sequence[str]) -> list[Sequence[int]]:
    """Returns for each path of a row the places of the files that it means, which may be none."""
    places = {name: [place] for place, name in enumerate(names)}
    found: list[Sequence[int]] = [places.get(path, ()) for path in paths]
    rest = collections.defaultdict[int, list[int]](list)
    for row, path in enumerate(paths):
        if not found[row] and path:
            rest[path.count("/")].append(row)
    for depth, rows in rest.items():
        whole, stems = (collections.defaultdict[str, list[int]](list) for _ in range(2))
        for place, name in enumerate(names):
            end = "/".join(name.split("/")[-depth - 1 :])
            whole[end].append(place)
            stems[posixpath.splitext(end)[0]].append(place)
        for row in rows:
            found[row] = whole.get(paths[row]) or stems.get(paths[row], ())
    return found


def place_by_table(files: Images, labels: LabelTable, options: ListingOptions) -> Images:
    """Returns the files to which a table gives a label, of `REF_SCHEMA`, with its other columns.

    A file that looks like an image and has no row is a reject. Rows without a file are counted in a
    note. Where a cell of `--label_columns` is unknown, the image is counted as ignored.

    Raises:
        errors.UserError: if a row means several files, two rows say different things of one file,
            or no row means a file.
    """
    names, table = files.table["name"].to_pylist(), labels.rows
    paths = table["path"].to_pylist()
    found = files_of(names, paths)
    if several := [row for row, places in enumerate(found) if len(places) > 1]:
        raise _refused("several files end with the path of a row", several, found, names, labels)
    lost = [row for row, places in enumerate(found) if not places]
    if len(lost) == len(found):
        raise _refused("no row has the path of a file", lost, found, names, labels)
    row_of_file = dict[int, int]()
    facts = [name for name in ("label", "patient", "split", _SITE) if name in table.column_names]
    for row, places in enumerate(found):
        for place in places:
            first = row_of_file.setdefault(place, row)
            if first != row and any(table[name][first] != table[name][row] for name in facts):
                raise errors.UserError(
                    f"--labels {labels.name}: rows {first + 1:,} and {row + 1:,} both name "
                    f"{names[place]!a}, and say different things of it; a file needs one row"
                )
    places = sorted(row_of_file)
    rows = table.take(pa.array([row_of_file[place] for place in places], pa.int64()))
    known = files.table.take(pa.array(places, pa.int64()))
    has_label = pc.is_valid(rows["label"])
    without = known["name"].filter(pc.invert(has_label)).to_pylist()
    ledger, people = Ledger(), dict[str, str]()
    if options.label_columns:
        ledger += Ledger(ignored=collections.Counter(unknown_label=len(without)))
    else:
        detail = f"its row in {labels.name} has no label"
        ledger += Ledger(rejects=tuple(RejectedFile(n, "no_label", detail) for n in without))
        if "patient" in rows.column_names:
            some = rows["patient"].filter(pc.invert(has_label)).to_pylist()
            people = {name: who for name, who in zip(without, some, strict=True) if who}
    # A file without a row counts as an image if one with a row has the same ending. The files of a
    # DICOM export have none.
    endings = {ending_of(names[place]) for place in places}
    rest = (name for place, name in enumerate(names) if place not in row_of_file)
    ledger += without_label(rest, f"{labels.name} has no row for it", endings)
    known, rows = known.filter(has_label), rows.filter(has_label)
    if not rows.num_rows:
        raise errors.UserError(
            f"--labels {labels.name}: its paths fit files, but no row has a label; fill them in, "
            "or name their column with --columns label=COLUMN"
        )
    names = known["name"].to_pylist()
    root = "/".join(common_folders(name.rpartition("/")[0] for name in names))
    columns = {name: rows[name] for name in rows.column_names} | {
        "root": [root] * len(names),
        "path": [name.removeprefix(f"{root}/") for name in names],
        "split": rows["split"] if "split" in rows.column_names else ["train"] * len(names),
    }
    refs = make_refs(known, columns).sort_by([("path", "ascending"), ("offset", "ascending")])
    images = files.then(refs, ledger, label_names=labels.label_names, reject_patients=people)
    notes = [*labels.notes]
    if lost:
        notes.append(
            f"{counted(len(lost), 'row')} of the table of --labels have no file in the input, such "
            f"as row {lost[0] + 1:,} ({paths[lost[0]]!a})"
        )
    if num_repeated := len(found) - len(lost) - len(row_of_file):
        notes.append(
            f"{num_repeated:,} rows of the table of --labels repeat the label of a file; what its "
            "first row says in other columns is kept"
        )
    return images.noted(*notes)


def _refused(
    why: str, rows: Sequence[int], found: Sequence[Sequence[int]], names: Sequence[str],
    labels: LabelTable,
) -> errors.UserError:  # fmt: skip
    """Returns an error with three rows, the files that they mean, and what a path should be."""
    paths, lines = labels.rows["path"].to_pylist(), []
    for row in rows[:3]:
        some = [names[place] for place in found[row][:2]]
        meant = f"{len(found[row]):,} files such as {' and '.join(map(ascii, some))}"
        lines.append(f"\n  row {row + 1:,}, {paths[row]!a}: {meant if some else 'no file'}")
    # A table of another machine names the same files below other folders.
    path, example = paths[rows[0]], next(iter(names), "")
    ends = (name for name in names if path.lower().endswith(f"/{name.lower()}"))
    start = next((path[: -len(name)] for name in ends), "")
    advice = f". In pandas: table.path = table.path.str.removeprefix({start!r})" if start else ""
    return errors.UserError(
        f"--labels {labels.name}: {why} ({len(rows):,} of {len(paths):,}):{''.join(lines)}\n"
        f"A path is that of a file in the input, such as {example!a}, or an end that no other file "
        f"has{advice}"
    )
