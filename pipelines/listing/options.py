"""The options of the listing: classes, labels, patients, and the folder to look in."""

from __future__ import annotations

import dataclasses
import functools
import os
import re
from pathlib import Path
from typing import Any

from pipelines import errors
from pipelines.listing import roles
from pipelines.listing.label_cells import combined_in
from pipelines.listing.label_table import OPTIONAL, LabelTable, read_label_table
from tfrecord_io.format.kinds import (
    CLASSES,
    GRADES,
    MULTI_LABEL,
    NONE,
    NUMBER,
    SEPARATOR,
    LabelKind,
)
from tfrecord_io.terminal.flags import check, flag, names

#: Kermany's file names are CLASS-PATIENT-INDEX.jpeg. The group excludes the class on purpose,
#: because a patient can appear in several classes.
DEFAULT_GROUP_REGEX = r"^[A-Za-z]+-(\d+)-\d+\.[A-Za-z]+$"


# The flags that are patterns, and what their first group is.
_PATTERNS = {
    "include_regex": "", "exclude_regex": "", "label_regex": "class", "group_regex": "patient",
}  # fmt: skip


def _columns(text: str) -> dict[str, str]:
    pairs = [name.partition("=") for name in names(text)]
    found = {new.strip(): old.strip() for new, _, old in pairs}
    if len(found) < len(pairs) or not all(found) or not all(found.values()):
        raise ValueError
    return found


def _files(text: str) -> tuple[Path, ...]:
    # The name of one file may have a comma. A long list of them is no error of the system here.
    is_one = os.path.exists(text)  # noqa: PTH110
    return (Path(text),) if is_one else tuple(map(Path, names(text)))


def _layout(text: str) -> tuple[str, ...]:
    found = tuple(text.strip("/").split("/"))
    named = [role for role in found if role != "*"]
    if not set(found) <= {*roles.ROLES} or not named or len(set(named)) < len(named):
        raise ValueError
    return found


@dataclasses.dataclass(frozen=True, kw_only=True)
class ListingOptions:
    """What the user says about the layout and the labels.

    Raises:
        ValueError: if a value is wrong, or two options contradict each other.
    """

    classes: tuple[str, ...] = flag(
        (),
        "class folders to use, in the order of their label indices; one with a comma in quotes, as "
        "in CSV (default: all, sorted)",
        parse=names,
        metavar="A,B,...",
    )
    grades: tuple[str, ...] = flag(
        (),
        "the classes to use, instead of --classes, if they are grades: from the lowest to the "
        "highest",
        parse=names,
        metavar="A,B,...",
    )
    tree: str | None = flag(
        None,
        "the folder in the input that holds train/, val/ and test/, if several folders do",
        metavar="FOLDER",
    )
    layout: tuple[str, ...] = flag(
        (),
        "what the levels of folders are, outermost first, from where the folders of images part: "
        "split, class, patient, or * for a level that means nothing (default: what their names and "
        "counts say)",
        parse=_layout,
        expected="split, class, patient and * with / between them, such as split/class/patient",
        metavar="A/B/...",
    )
    include_regex: str | None = flag(
        None, "use only files with a match of this pattern in their path", metavar="REGEX"
    )
    exclude_regex: str | None = flag(
        None, "leave out files with a match of this pattern in their path", metavar="REGEX"
    )
    label_regex: str | None = flag(
        None,
        "pattern whose first group is the class in a file's name or, if the name does not match, "
        "in its path, such as ^(benign|malignant)_",
        metavar="REGEX",
    )
    group_regex: str = flag(
        DEFAULT_GROUP_REGEX,
        "pattern whose first group is the patient in a file's name or, if the name does not match, "
        "in its path, such as (patient[0-9]+)/",
        metavar="REGEX",
        alias="patient_regex",
    )
    copies_by_name: bool = flag(
        True,
        "keep copies with their source in splits and folds: NAME.rf.HASH.jpg; and NAME_aug_3, "
        "NAME-flip or NAME (2) where NAME is in the same folder",
        can_be_negated=True,
    )
    labels: Path | tuple[Path, ...] | None = flag(
        None,
        "table with the columns path and label, and patient, split and site if known, a row for "
        "each image or folder: a .csv, .parquet, .xlsx, .json or .jsonl file, or one for each "
        "split, such as train.csv,test.csv. Folders then say nothing about the class",
        parse=_files,
        metavar="FILE",
    )
    columns: dict[str, str] | None = flag(
        None,
        "what the table of --labels calls its columns, such as path=filename,label=finding; "
        "path=folder/name joins two",
        parse=_columns,
        expected="path=COLUMN,label=COLUMN and the like",
        metavar="NAME=COLUMN,...",
    )
    label_columns: tuple[str, ...] = flag(
        (),
        "columns of the table of --labels that hold a 0 or a 1 for each of several labels, instead "
        "of the column label",
        parse=names,
        metavar="A,B,...",
    )
    one_class: bool = flag(
        False, "each image has a 1 in only one of the --label_columns, which are the classes"
    )
    uncertain: str | None = flag(
        None,
        "what a -1 in the --label_columns means; an image with a missing label is left out",
        choices=("positive", "negative", "missing"),
    )
    label_separator: str = flag(
        "",
        "what is between the labels in the column label, if it may hold several, as in "
        "Effusion|Mass",
        metavar="TEXT",
    )
    target: str | None = flag(
        None,
        "column of the table of --labels that holds a number for each image, or with --grades its "
        "grade, instead of the column label",
        metavar="COLUMN",
    )
    missing: tuple[str, ...] | None = flag(
        None,
        "texts of cells without a value in the table of --labels, written exactly so (default: "
        "those of pandas in a CSV file, such as NA, None and nan). An empty cell is always one: "
        "--missing '' leaves only that",
        parse=lambda text: tuple(text.split(",")),
        metavar="A,B,...",
    )

    def __post_init__(self) -> None:
        check(self)
        for name, wanted in _PATTERNS.items():
            pattern = getattr(self, name)
            try:
                if pattern is not None and wanted and not re.compile(pattern).groups:
                    raise re.error(f"it needs a group in parentheses for the {wanted}")
                re.compile(pattern or "")
            except re.error as error:
                flag_name = "patient_regex" if name == "group_regex" else name
                raise ValueError(
                    f"--{flag_name} {pattern!r} is not a valid pattern: {error}"
                ) from None
        if self.labels and (self.layout or self.label_regex):
            raise ValueError(
                "--labels names the class of each image; leave --layout and --label_regex out"
            )
        if self.layout and ("class" in self.layout) == bool(self.label_regex):
            raise ValueError("the class is told by --layout or by --label_regex; give one of them")
        chosen, target = self.label_columns, self.target
        if any(len(set(names)) < len(names) for names in (self.classes, self.grades, chosen)):
            raise ValueError("--classes, --grades and --label_columns take each name once")
        if len(self.grades) == 1:
            raise ValueError(f"--grades takes two or more names; received {self.grades[0]}")
        ways = (self.classes, self.grades or target, chosen, self.label_separator)
        if sum(map(bool, ways)) > 1:
            raise ValueError(
                "give one of --classes, --grades (or --target), --label_columns and "
                "--label_separator"
            )
        for_tables = (chosen, self.columns, target is not None, self.missing is not None)
        if any((*for_tables, self.label_separator)) and not self.labels:
            raise ValueError(
                "--label_columns, --label_separator, --target, --missing and --columns need "
                "--labels"
            )
        if (self.one_class and len(chosen) < 2) or (self.uncertain and not chosen):
            raise ValueError("--one_class and --uncertain say what --label_columns A,B,... hold")
        taken = ("path", *OPTIONAL)
        if {NONE, *taken} & set(chosen) or SEPARATOR in "".join(chosen):
            raise ValueError(
                f"--label_columns takes no name with {SEPARATOR}, and not {NONE}, "
                f"{', '.join(taken)}; received {','.join(chosen)}"
            )
        if target in ("", *taken):
            raise ValueError(
                f"--target must name a column with numbers or grades, received {target!r}"
            )

    @property
    def label_kind(self) -> LabelKind:
        """What an example's label can be."""
        if self.label_separator or (self.label_columns and not self.one_class):
            return MULTI_LABEL
        if self.grades:
            return GRADES
        return NUMBER if self.target else CLASSES

    @property
    def label_names(self) -> tuple[str, ...]:
        """The names of the labels in the order of their indices, if the user gave them."""
        if self.label_kind.is_number:
            return (self.target or "",)
        given = self.label_columns or self.grades or self.classes
        return self.table.label_names if self.label_separator and self.table else given

    @functools.cached_property
    def table(self) -> LabelTable | None:
        """The table of `--labels`, read once.

        Raises:
            errors.UserError: if it cannot be used, see `read_label_table`.
        """
        if self.labels is None:
            return None
        table = read_label_table(
            *(self.labels if isinstance(self.labels, tuple) else (self.labels,)),
            kind=self.label_kind,
            columns=self.label_columns or (self.target or "label",),
            missing=self.missing,
            renamed=self.columns,
            separator=self.label_separator,
            uncertain=self.uncertain,
        )
        is_free = self.label_kind == CLASSES and not self.classes and not self.one_class
        if is_free and (combined := combined_in(dict.fromkeys(table.cells["label"]))):
            separator, name, has_others = combined
            text = (
                f"the label {name!a} may be several; --label_separator '{separator}' divides it, "
                "and --classes names the classes if it is one"
            )
            if has_others:
                raise errors.UserError(f"--labels {table.name}: {text}")
            return dataclasses.replace(table, notes=(*table.notes, text))
        return table

    def identity(self) -> dict[str, Any]:
        """Returns what decides the labels and the patients, by flag."""
        kind = self.label_kind
        return {
            "group_regex": self.group_regex,
            **({"label_regex": self.label_regex} if self.label_regex else {}),
            **({"labels": self.table.digest} if self.table else {}),
            **({**kind.entry, "format_version": kind.format_version} if kind.entry else {}),
        }
