"""The options of the listing: classes, labels, patients, and the folder to look in."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from pipelines.listing import roles
from pipelines.listing.table_files import OPTIONAL
from pipelines.sources.npz import NpzSource
from tfrecord_io.format import kinds
from tfrecord_io.format.kinds import NONE, SEPARATOR, LabelKind
from tfrecord_io.terminal.address import local_path
from tfrecord_io.terminal.flags import check, flag, names
from tfrecord_io.terminal.spelling import compiled, in_one_form

#: Kermany's file names are CLASS-PATIENT-INDEX.jpeg. The group excludes the class on purpose,
#: because a patient can appear in several classes.
DEFAULT_PATIENT_REGEX = r"^[A-Za-z]+-(\d+)-\d+\.[A-Za-z]+$"


# The flags that are patterns, and what their first group is.
_PATTERNS = {
    "include_regex": "", "exclude_regex": "", "label_regex": "class", "patient_regex": "patient",
}  # fmt: skip


def pairs(text: str, divided: Callable[[str, str], tuple[str, str, str]]) -> dict[str, str]:
    """Returns the pairs of NAME=NAME,...; `divided` divides one at its `=`."""
    pairs = [divided(name, "=") for name in names(text)]
    found = {one.strip(): other.strip() for one, _, other in pairs}
    if len(found) < len(pairs) or not all(found) or not all(found.values()):
        raise ValueError
    return found


def _files(text: str) -> tuple[Path, ...]:
    # `text` may be one file with a comma in its name. `os.path.exists` answers False, where
    # `Path.exists` may raise, for a list that is longer than a file name can be.
    is_one = os.path.exists(text)  # noqa: PTH110
    return (Path(text),) if is_one else tuple(map(local_path, names(text)))


def _layout(text: str) -> tuple[str, ...]:
    levels = tuple(text.strip("/").split("/"))
    named = [role for role in levels if role != "*"]
    if not set(levels) <= {*roles.ROLES} or not named or len(set(named)) < len(named):
        raise ValueError
    return levels


@dataclasses.dataclass(frozen=True, kw_only=True)
class ListingOptions:
    """What the user says about the layout and the labels.

    Raises:
        ValueError: if a value is wrong, or two options contradict each other.
    """

    classes: tuple[str, ...] = flag(
        (),
        "classes to use, in the order of their indices; one with a comma in quotes, as in CSV "
        "(default: all, sorted)",
        parse=names,
        metavar="A,B,...",
        adds_up=True,
    )
    grades: tuple[str, ...] = flag(
        (),
        "classes to use that are grades, from the lowest to the highest",
        parse=names,
        metavar="A,B,...",
        adds_up=True,
    )
    tree: str | None = flag(
        None, "folder that holds train/, val/ and test/, if several do", metavar="FOLDER"
    )
    layout: tuple[str, ...] = flag(
        (),
        "what each level of folders is, from where those of images part: split, class, patient or "
        "* for nothing (default: what names and counts say)",
        parse=_layout,
        expected="split, class, patient and * with / between them, such as split/class/patient",
        metavar="A/B/...",
    )
    include_regex: str | None = flag(
        None, "use only files with a match in their path", metavar="REGEX"
    )
    exclude_regex: str | None = flag(
        None, "leave out files with a match in their path", metavar="REGEX"
    )
    modality: tuple[str, ...] = flag(
        (),
        "use only pictures of these modalities, as tags of DICOM or a column modality of the table "
        "name them, such as OPT for B-scans",
        parse=names,
        metavar="A,B,...",
        adds_up=True,
    )
    label_regex: str | None = flag(
        None,
        "pattern whose first group is the class, in a file's name or else its path, such as "
        "^(benign|malignant)_",
        metavar="REGEX",
    )
    patient_regex: str = flag(
        DEFAULT_PATIENT_REGEX,
        "pattern whose first group is the patient, in a file's name or else its path, such as "
        "(patient[0-9]+)/",
        metavar="REGEX",
    )
    labels: Path | tuple[Path, ...] | None = flag(
        None,
        "table with a row for each image or folder, and the columns path, label, and if known "
        "patient, split and site: .csv, .parquet, .xlsx, .json or .jsonl, or a file for each "
        "split, such as train.csv,test.csv",
        parse=_files,
        metavar="FILE",
        adds_up=True,
    )
    columns: dict[str, str] | None = flag(
        None,
        "what the table calls its columns, such as path=filename,label=finding; path=folder/name "
        "joins two",
        parse=lambda text: pairs(text, str.partition),
        expected="path=COLUMN,label=COLUMN and the like",
        metavar="NAME=COLUMN,...",
        adds_up=True,
    )
    label_columns: tuple[str, ...] = flag(
        (),
        "columns of the table with a 0 or a 1 for each of several labels",
        parse=names,
        metavar="A,B,...",
        adds_up=True,
    )
    one_class: bool = flag(False, "each of the --label_columns is a class; an image has one")
    uncertain: str | None = flag(
        None,
        "what a -1 in the --label_columns means; an image with a missing label is left out",
        choices=("positive", "negative", "missing"),
    )
    label_separator: str = flag(
        "",
        "what is between several labels in the column label, as in Effusion|Mass",
        metavar="TEXT",
    )
    target: str | None = flag(
        None,
        "column of the table with a number for each image or, with --grades, its grade",
        metavar="COLUMN",
    )
    decimal: str = flag(
        ".", "the decimal mark of the numbers in the column of --target", choices=(".", ",")
    )
    missing: tuple[str, ...] | None = flag(
        None,
        "texts of cells without a value, besides empty ones (default: in CSV those of pandas, such "
        "as NA, None and nan; --missing '' for none)",
        parse=lambda text: tuple(text.split(",")),
        metavar="A,B,...",
        may_be_empty=True,
    )
    #: The source, if the table of labels is in its files; `labels` goes before it.
    rows: NpzSource | None = None

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            object.__setattr__(self, name, in_one_form(value))  # the dataclass is frozen
        check(self)
        chosen = (self.classes, self.grades, self.label_columns, self.label_separator, self.target)
        if self.rows and not any(chosen):
            object.__setattr__(self, "label_columns", self.rows.label_columns)
        for name, wanted in _PATTERNS.items():
            if (pattern := getattr(self, name)) is not None:
                compiled(name, pattern, wanted)
        if wrong := next(self._problems(), None):
            raise ValueError(wrong)

    def _problems(self) -> Iterator[str]:
        """Yields what two options together, or the names in one, have wrong."""
        has_table = self.labels or self.rows
        if has_table and (self.layout or self.label_regex):
            yield "a table names the class of each image; leave --layout and --label_regex out"
        if self.layout and ("class" in self.layout) == bool(self.label_regex):
            yield "the class is told by --layout or by --label_regex; give one of them"
        chosen, target = self.label_columns, self.target
        if any(len(set(names)) < len(names) for names in (self.classes, self.grades, chosen)):
            yield "--classes, --grades and --label_columns take each name once"
        if len(self.grades) == 1:
            yield f"--grades takes two or more names; received {self.grades[0]}"
        if sum(map(bool, (self.classes, self.grades or target, chosen, self.label_separator))) > 1:
            yield (
                "give one of --classes, --grades (or --target), --label_columns and "
                "--label_separator"
            )
        for_tables = (chosen, self.columns, target is not None, self.missing is not None)
        if any((*for_tables, self.label_separator)) and not has_table:
            yield (
                "--label_columns, --label_separator, --target, --missing and --columns need "
                "--labels"
            )
        if (self.one_class and len(chosen) < 2) or (self.uncertain and not chosen):
            yield "--one_class and --uncertain say what --label_columns A,B,... hold"
        taken = ("path", *OPTIONAL)
        if {NONE, *taken} & set(chosen) or SEPARATOR in "".join(chosen):
            yield (
                f"--label_columns takes no name with {SEPARATOR}, and not {NONE}, "
                f"{', '.join(taken)}; received {','.join(chosen)}"
            )
        if self.decimal != "." and not self.label_kind.is_number:
            yield "--decimal is for the numbers of --target"
        if target in ("", *taken):
            yield f"--target must name a column with numbers or grades, received {target!r}"

    @property
    def label_kind(self) -> LabelKind:
        """What an example's label can be."""
        if self.label_separator or (self.label_columns and not self.one_class):
            return kinds.MULTI_LABEL
        if self.grades:
            return kinds.GRADES
        return kinds.NUMBER if self.target else kinds.CLASSES

    @property
    def label_names(self) -> tuple[str, ...]:
        """The names of the labels in the order of their indices, if the user gave them."""
        if self.label_kind.is_number:
            return (self.target or "",)
        return self.label_columns or self.grades or self.classes

    @property
    def tables(self) -> tuple[Path, ...]:
        """The files of the table of labels, which may be those of the source; empty without one."""
        files = self.labels or (self.rows.path if self.rows else ())
        return files if isinstance(files, tuple) else (files,)

    @property
    def cell_columns(self) -> tuple[str, ...]:
        """The columns of the table that hold the labels."""
        return self.label_columns or (self.target or "label",)

    def identity(self) -> dict[str, Any]:
        """Returns what decides the labels and the patients, by flag.

        Patterns that choose files are left out: the digest of the listing tells which there are.
        A table of labels has a digest of its own.
        """
        return {
            "tree": self.tree and self.tree.strip(" /"),
            "layout": "",
            "patient_regex": self.patient_regex,
            "label_regex": self.label_regex,
            "modality": list(self.modality),
            "label_kind": self.label_kind.name,
        }
