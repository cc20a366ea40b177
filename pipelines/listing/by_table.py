"""Finds the split, the class and the patient of each file in the rows of a table of labels."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import pyarrow as pa

from pipelines import errors
from pipelines.listing import roles
from pipelines.listing.files import chosen, common_folders, ending_of, inside_tree, without_label
from pipelines.listing.images import Images, Ledger
from pipelines.listing.label_table import Labels, LabelTable
from pipelines.listing.matching import match_files
from pipelines.listing.options import ListingOptions
from pipelines.listing.refs import OTHER, REF_SCHEMA, RejectedFile, make_refs
from pipelines.sources.source import Source
from tfrecord_io.format.examples import OWN
from tfrecord_io.terminal.printing import printable


def rows_of_chosen_files(labels: Labels, source: Source) -> Labels:
    """Returns the table of labels without the rows of files that a pattern leaves out."""
    options = labels.options
    if not (options.include_regex or options.exclude_regex):
        return labels
    files = chosen(source.members(), options)
    is_left_out = {member.name: not is_chosen for member, is_chosen in files}
    match = match_files([*is_left_out], labels.names)
    return labels.without(match.rows_of([*is_left_out.values()]))


def place_by_table(files: Images, labels: LabelTable, options: ListingOptions) -> Images:
    """Returns the files to which a table gives a label, of `REF_SCHEMA`, with its other columns.

    A file without a row, and a row without a file, are rejects; such a row counts as a file. Files
    outside the folder of `--tree`, if there is one, are left out.

    Raises:
        errors.UserError: if a row names a split that cannot be, two rows say different things of
            one file, or no file has a label.
    """
    files = inside_tree(files, options.tree)
    names = files.table["name"].to_pylist()
    row_of_file, _, found = match_files(names, labels)
    places, rows, problems = list[int](), list[int](), list[RejectedFile]()
    # A file without a row counts as an image if one with a row has the same ending. The files of a
    # DICOM export have none.
    without, endings = list[str](), set[str | None]()
    people, known = labels.patients, dict[str, str | None]()
    for place, (name, row) in enumerate(zip(names, row_of_file, strict=True)):
        if row is None:
            without.append(name)
            continue
        endings.add(ending_of(name))
        if problem := labels.problem_of(row):
            problems.append(RejectedFile(name, *problem))
            known[name] = people[row]
        else:
            places.append(place)
            rows.append(row)
    found += without_label(without, lambda _: f"{labels.name} has no row for it", endings)
    files = files.then(
        found=found + Ledger(rejects=tuple(problems)),
        reject_patients={name: patient for name, patient in known.items() if patient},
    ).noted(*labels.notes)
    if taken := labels.others.keys() & {*OWN}:
        files = files.noted(
            f"left out the column {', '.join(sorted(taken))} of the table of --labels, which "
            "examples.parquet has for itself; rename it to keep it"
        )
    if not rows:
        number = f"-1234{options.decimal}5"
        raise _no_label(files.ledger.rejects, labels.name, number, is_found=bool(problems))
    root = "/".join(common_folders({names[place].rpartition("/")[0] for place in places}))
    columns: dict[str, Any] = {"root": [root] * len(rows)}
    for name, cells in labels.cells.items():
        texts = pa.array([cells[row] for row in rows], pa.string())
        columns[name if name in REF_SCHEMA.names else f"{OTHER}{name}"] = texts
    columns["path"] = [names[place].removeprefix(f"{root}/") for place in places]
    named = labels.cells.get("split")
    columns["split"] = [_split_of(labels, row, named[row] if named else "train") for row in rows]
    for name, values in labels.others.items():
        columns[f"{OTHER}{name}"] = values.take(pa.array(rows, pa.int64()))
    refs = make_refs(files.table.take(pa.array(places, pa.int64())), columns)
    refs = refs.sort_by([("path", "ascending"), ("offset", "ascending")])
    return files.then(refs, label_names=options.label_columns or labels.label_names)


def _no_label(
    rejects: Iterable[RejectedFile], table: str, number: str, *, is_found: bool
) -> errors.UserError:
    """Returns the error of a table of which no row gives a label; files are found or not."""
    why = {reject.reason: reject.detail for reject in rejects}
    advice = "Its `path` should be a file's path in the input, or the end of it"
    if "not_a_number" in why:
        advice = f"Its paths fit files; write its numbers as in {number} (see --decimal)"
    elif is_found:
        advice = (
            "Its paths fit files; fill in its labels, or name their column with --columns "
            "label=COLUMN"
        )
    return errors.UserError(
        f"no row of --labels {table} gives a label to one of the files: "
        f"{printable('; '.join(why.values())) or 'no file looks like an image'}. {advice}"
    )


def _split_of(labels: LabelTable, row: int, name: str | None) -> str:
    """Returns the split that a row names: `val` for `Validation`."""
    split = roles.SPLITS.get((name or "").lower(), name or "")
    if not re.fullmatch(r"[a-z][a-z0-9_]*", split):
        raise errors.UserError(
            f"--labels {labels.name}: row {row + 1:,} has the split {split!a}; expected train, "
            "val, test or another name of lower-case letters, digits and underscores"
        )
    return split
