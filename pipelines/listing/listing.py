"""Turns the files of a source into image references, with split, class and patient."""

from __future__ import annotations

import collections
import dataclasses
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from pipelines import errors
from pipelines.listing.label_table import LabelTable
from pipelines.listing.layout import SPLITS, Sorter
from pipelines.listing.options import DEFAULT_GROUP_REGEX, ListingOptions
from pipelines.listing.refs import BATCH_ROWS, OTHERS, REF_SCHEMA, SITE, RejectedFile, with_column
from pipelines.listing.selection import choose_classes, choose_tree, drop_copies
from pipelines.sources.member import NOT_PERMITTED, Member
from pipelines.sources.source import Source
from tfrecord_io.manifest import WEIGHT


@dataclasses.dataclass(frozen=True, kw_only=True)
class Listing:
    """The files of a source. Each is counted once: in refs, rejects, copies or ignored.

    Attributes:
        refs: the images, a table of `REF_SCHEMA` sorted by path.
        rejects: files that should be images of a class but cannot be used, sorted by path.
        copies: number of files in a second tree that repeat a listed one.
        ignored: number of files that are not data, by reason, sorted.
        num_files: number of files seen; each frame of a file with several counts as a file.
        frames: number of images that are frames of DICOM or TIFF files, by format.
        units: number of images by the unit of their stored numbers, see `dicom_tags.unit_of`;
            empty if no file needs a formula.
        no_window: whether there is a DICOM file without a window.
        patient_in_path: whether there is an image whose patient is in its folders.
        notes: what the user should know about the classes, one sentence each.
        naming_notes: likewise, with names of files or columns, which an anonymous dataset omits.

    Raises:
        RuntimeError: if the numbers do not add up to `num_files`.
    """

    refs: pa.Table
    rejects: tuple[RejectedFile, ...]
    copies: int
    ignored: dict[str, int]
    num_files: int
    frames: Mapping[str, int] = dataclasses.field(default_factory=dict)
    units: Mapping[str, int] = dataclasses.field(default_factory=dict)
    no_window: bool = False
    patient_in_path: bool = False
    notes: tuple[str, ...] = ()
    naming_notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        rejects = sorted(self.rejects, key=lambda reject: (reject.source_path, reject.reason))
        object.__setattr__(self, "rejects", tuple(rejects))  # the dataclass is frozen
        object.__setattr__(self, "ignored", dict(sorted(self.ignored.items())))
        parts = self.refs.num_rows + len(self.rejects) + self.copies + sum(self.ignored.values())
        if parts != self.num_files:
            raise RuntimeError(
                f"the listing saw {self.num_files} files, but {parts} are accounted for; this is "
                "a bug, please report it"
            )


def list_source(source: Source, options: ListingOptions) -> Listing:
    """Asks a source for its files, and finds the images among them.

    Raises:
        errors.UserError: as `Source.members` and `list_images` do.
        errors.BuildError: if a store does not answer, or this user may not read some files.
    """
    if not source.gives_labels:
        return list_images(source.members(), options, source.same_content)
    rows = [{"root": "", "path": member.name, **member._asdict()} for member in source.members()]
    refs = pa.Table.from_pylist(rows, REF_SCHEMA).combine_chunks()
    ignored: collections.Counter[str] = collections.Counter()
    refs = choose_classes(refs, options.chosen_classes, ignored)
    return Listing(refs=refs, rejects=(), copies=0, ignored=ignored, num_files=len(rows))


def list_images(
    members: Iterable[Member],
    options: ListingOptions,
    same_content: Callable[[Member, Member], bool],
) -> Listing:
    """Sorts a source's files into images, copies of images, rejects and ignored files.

    Two layouts are recognised, below any folder: SPLIT/CLASS/files and, if there is no split
    folder, CLASS/files, whose images all go to the split `train`. Files may be in subfolders of
    their class. If all images below a folder with a split's name are in further such folders, as
    in train/train/CNV or dev/scans/train/CNV, the inner ones are the splits.

    Args:
        members: the files of the source, in any order.
        options: what the user says about the layout.
        same_content: returns whether two files have the same content; it is called for files of
            the same size and path in two trees.

    Raises:
        errors.UserError: if no image is found, the chosen tree or classes do not exist, there
            are several unrelated trees and none was chosen, a class holds folders named like other
            classes, or no image matches the user's `group_regex`.
    """
    labels = options.table
    sorter = Sorter(has_folders=labels is None)
    for member in members:
        sorter.add(member)
    _require_permission(sorter.rejects)
    naming_notes: list[str] = []
    if labels:
        table = _with_labels(sorter, labels, options)
        naming_notes += labels.notes
    else:
        table = _with_classes(sorter, options)
    table, copies = drop_copies(table, same_content, sorter.rejects)
    # The name of the table stays out of the notes, which are in an anonymous dataset too.
    notes = _label_notes(table, labels, sorter.num_repeated_rows)
    in_path = False
    if labels is None or labels.patient is None:
        patients, in_path = _find_patients(table["path"], options.group_regex)
        naming_notes += _patient_notes(table["path"], patients, options.group_regex)
        table = with_column(table, "patient", patients)
    more = [table.schema.field(name) for name in (SITE, OTHERS) if name in table.column_names]
    schema = pa.schema([*REF_SCHEMA, *more])
    return Listing(
        refs=table.select(schema.names).cast(schema).combine_chunks(),
        rejects=tuple(sorter.rejects),
        copies=copies,
        ignored=sorter.ignored,
        num_files=sorter.num_files,
        patient_in_path=in_path,
        notes=tuple(notes),
        naming_notes=tuple(naming_notes),
    )


def _with_classes(sorter: Sorter, options: ListingOptions) -> pa.Table:
    """Returns the images with the split and class of their folders, copies next to each other."""
    table = sorter.place()
    if not table.num_rows:
        raise errors.UserError(
            f"found no image in SPLIT/CLASS or CLASS folders among {sorter.num_files:,} files; "
            "check --input: it should hold folders like train/CNV/, or CNV/. If the class is not "
            "the folder of a file, name it in a table: --labels labels.csv, with the columns path "
            "and label"
        )
    table = choose_tree(table, options.tree, sorter.ignored)
    table = choose_classes(table, options.chosen_classes, sorter.ignored)
    _require_separate_classes(table)
    return table


def _with_labels(sorter: Sorter, labels: LabelTable, options: ListingOptions) -> pa.Table:
    """Returns the images with the label, patient and split of their rows in a table.

    A file without a row, and a row without a file, are rejects; such a row counts as a file.
    """
    table = sorter.place_by_table(labels, options.tree)
    if not table.num_rows:
        why = {reject.reason: reject.detail for reject in sorter.rejects}
        raise errors.UserError(
            f"no row of --labels {labels.name} gives a label to one of the files: "
            + ("; ".join(why.values()) or "there are no files")
            + ". Its `path` should be a file's path in the input, or the end of it"
        )
    table = choose_classes(table, options.chosen_classes, sorter.ignored)
    return table.sort_by([("path", "ascending"), ("offset", "ascending")])


def _require_separate_classes(table: pa.Table) -> None:
    """Refuses a class whose subfolders are named like other classes: it may be a second tree."""
    label = pc.cast(table["label"], pa.string())
    first, second, third = (
        pc.struct_field(pc.extract_regex(table["path"], rf"^(?:[^/]*/){{{depth}}}(?P<x>[^/]*)/"), 0)
        for depth in range(3)
    )
    inner = pc.if_else(pc.equal(first.cast(pa.string()), label), second, third).cast(pa.string())
    is_class = pc.and_(pc.is_in(inner, pc.unique(label)), pc.not_equal(inner, label))
    nested = pa.table({"label": label, "inner": inner}).filter(is_class)
    if not nested.num_rows:
        return
    pairs = nested.group_by(["label", "inner"]).aggregate([]).to_pylist()
    shown = sorted(f"{pair['label']}/{pair['inner']}" for pair in pairs)
    outer = {pair["label"] for pair in pairs}
    others = sorted(set(pc.unique(label).to_pylist()) - outer)
    raise errors.UserError(
        f"the class folder {' and '.join(map(ascii, sorted(outer)))} holds folders named like "
        f"other classes: {', '.join(map(ascii, shown[:4]))}; if it is not a class, name the "
        f"classes with --classes {','.join(others)}, or give that folder as --input"
    )


def _require_permission(rejects: Iterable[RejectedFile]) -> None:
    paths = [reject.source_path for reject in rejects if reject.reason == NOT_PERMITTED]
    if paths:
        more = ", ..." if len(paths) > 3 else ""
        raise errors.BuildError(
            f"this user may not read {len(paths):,} files or folders of the input: "
            f"{', '.join(sorted(paths)[:3])}{more}. Permit it (chmod), and run the same command "
            "again; or, to leave them out, move them out of the input or give them names that "
            "begin with a dot"
        )


def _label_notes(table: pa.Table, labels: LabelTable | None, num_repeated: int) -> Iterator[str]:
    """Yields what the user should know about the classes, or the rows of a table of labels."""
    names = sorted(pc.unique(table["label"].cast(pa.string())).to_pylist())
    if labels is None:
        for name in names:
            if name.lower() in SPLITS:
                yield (
                    f"the class {name!a} has the name of a split; if it is not a class, give "
                    "--input or --tree the folder that holds the SPLIT or CLASS folders"
                )
        yield from _alike_notes("classes", names, "rename the folders")
        return
    names = sorted(labels.label_columns) or names
    yield from _alike_notes("labels", names, "give them one name in the table")
    if num_repeated:
        yield (
            f"{num_repeated:,} rows of the table of --labels repeat the label of a file; what its "
            "first row says in other columns is kept"
        )
    if labels.others is not None and WEIGHT in labels.others.column_names:
        ends = pc.min_max(labels.others[WEIGHT]).as_py()
        yield (
            f"each image counts in training by the column {WEIGHT} of the table of --labels, "
            f"{ends['min']:g} to {ends['max']:g}; if that is something else, such as kilograms, "
            f"rename it with --columns body_weight={WEIGHT}"
        )


def _alike_notes(noun: str, labels: Sequence[str], advice: str) -> Iterator[str]:
    """Yields a sentence for labels that look alike."""
    alike: dict[str, list[str]] = collections.defaultdict(list)
    for label in labels:
        alike[_folded(label)].append(ascii(label))
    for names in alike.values():
        if len(names) > 1:
            yield (
                f"the {noun} {' and '.join(names)} differ only in case, spaces or Unicode form; if "
                f"they are one, {advice}"
            )


def _folded(label: str) -> str:
    """Returns a form that is equal for names that look alike (Unicode D146: caseless matching)."""
    caseless = unicodedata.normalize("NFD", label).casefold()
    return unicodedata.normalize("NFC", caseless).strip()


def _patient_notes(
    paths: pa.ChunkedArray, patients: pa.ChunkedArray, group_regex: str
) -> Iterator[str]:
    """Yields a sentence if the user's pattern finds the patients of few images.

    Raises:
        errors.UserError: if it finds no patient.
    """
    num_without, num_images = patients.null_count, len(patients)
    if group_regex == DEFAULT_GROUP_REGEX or num_without <= num_images / 2:
        return
    without = paths.filter(patients.is_null()).slice(0, 3).to_pylist()
    text = (
        f"--group_regex {group_regex!r} finds a patient in the names or paths of "
        f"{num_images - num_without:,} of {num_images:,} images; others are "
        + ", ".join(map(ascii, without))
    )
    if num_without == num_images:
        raise errors.UserError(
            f"{text}. Its first group should be the patient, as in (patient[0-9]+)/ for a folder "
            "for each patient; a table of --labels can name the patients, too"
        )
    yield text


def _find_patients(paths: pa.ChunkedArray, group_regex: str) -> tuple[pa.ChunkedArray, bool]:
    """Returns the patient of each image, and whether one is not in the name, but in the folders."""
    pattern = re.compile(group_regex)
    in_path = False

    def patient(path: str) -> str | None:
        nonlocal in_path
        if match := pattern.search(path.rpartition("/")[2]):
            return match.group(1)
        match = pattern.search(path)
        in_path |= match is not None
        return match.group(1) if match else None

    # Batch by batch, because a list of all paths would take ten times the memory of the column.
    batches = (paths.slice(start, BATCH_ROWS) for start in range(0, len(paths), BATCH_ROWS))
    found = (map(patient, batch.to_pylist()) for batch in batches)
    kind = pa.large_string()
    return pa.chunked_array([pa.array(patients, kind) for patients in found], kind), in_path
