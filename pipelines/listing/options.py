"""The options of the listing: the layout of folders, the table of labels, classes and patients."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from pipelines.sources.npz import NpzFile
from tfrecord_io.format import kinds
from tfrecord_io.format.examples import SITE
from tfrecord_io.format.kinds import NONE, SEPARATOR, LabelKind
from tfrecord_io.terminal.flags import check, compiled, flag, names
from tfrecord_io.terminal.printing import in_one_form

#: Kermany's file names are CLASS-PATIENT-INDEX.jpeg. The group excludes the class on purpose,
#: because a patient can appear in several classes.
DEFAULT_PATIENT_REGEX = r"^[A-Za-z]+-(\d+)-\d+\.[A-Za-z]+$"

#: What a level of folders can be; `*` means nothing.
ROLES = ("split", "class", "patient", "*")

#: Columns that a table may have besides `path` and the labels, each with a meaning of its own.
OPTIONAL = ("patient", "split", SITE)

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


def _layout(text: str) -> tuple[str, ...]:
    levels = tuple(text.strip("/").split("/"))
    named = [role for role in levels if role != "*"]
    if not {*levels} <= {*ROLES} or not named or len({*named}) < len(named):
        raise ValueError
    return levels


@dataclasses.dataclass(frozen=True, kw_only=True)
class ListingOptions:
    """What the user says about the layout and the labels.

    Raises:
        ValueError: if a value is wrong, or two options contradict each other.
    """

    layout: tuple[str, ...] = flag(
        (),
        "what each level of folders is, from where those of images part: split, class, patient or "
        "* for nothing (default: class, or split/class)",
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
    labels: Path | None = flag(
        None,
        "table with a row for each image, and the columns path, label, and if known patient, split "
        "and site: .csv, .parquet or .xlsx",
        metavar="FILE",
    )
    columns: dict[str, str] | None = flag(
        None,
        "what the table calls its columns, such as path=filename,label=finding",
        parse=lambda text: pairs(text, str.partition),
        expected="path=COLUMN,label=COLUMN and the like",
        metavar="NAME=COLUMN,...",
    )
    label_columns: tuple[str, ...] = flag(
        (),
        "columns of the table with a 0 or a 1 for each of several labels",
        parse=names,
        metavar="A,B,...",
    )
    unknown_labels: str | None = flag(
        None,
        "what a blank or a -1 in the --label_columns is: negative, or a reason to drop the image "
        "(default: an error)",
        choices=("negative", "drop"),
    )
    classes: tuple[str, ...] = flag(
        (),
        "classes to use, in the order of their indices; one with a comma in quotes, as in CSV "
        "(default: all, sorted)",
        parse=names,
        metavar="A,B,...",
    )
    grades: tuple[str, ...] = flag(
        (),
        "classes to use that are grades, from the lowest to the highest",
        parse=names,
        metavar="A,B,...",
    )
    #: The source, if the table of labels is in its arrays; `labels` goes before it.
    rows: NpzFile | None = None

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            object.__setattr__(self, name, in_one_form(value))  # the dataclass is frozen
        check(self)
        if self.rows and not (self.classes or self.grades or self.label_columns):
            object.__setattr__(self, "label_columns", self.rows.label_columns)
        for name, wanted in _PATTERNS.items():
            if (pattern := getattr(self, name)) is not None:
                compiled(name, pattern, wanted)
        if wrong := next(self._problems(), None):
            raise ValueError(wrong)

    def _problems(self) -> Iterator[str]:
        """Yields what two options together, or the names in one, have wrong."""
        has_table, chosen = self.labels or self.rows, self.label_columns
        if has_table and (self.layout or self.label_regex):
            yield "a table names the class of each image; leave --layout and --label_regex out"
        if self.layout and ("class" in self.layout) == bool(self.label_regex):
            yield "the class is in --layout or found by --label_regex; give one of them"
        if "patient" in self.layout and self.patient_regex != DEFAULT_PATIENT_REGEX:
            yield "the patient is in --layout or found by --patient_regex; give one of them"
        if any(len({*labels}) < len(labels) for labels in (self.classes, self.grades, chosen)):
            yield "--classes, --grades and --label_columns take each name once"
        if len(self.grades) == 1:
            yield f"--grades takes two or more names; received {self.grades[0]}"
        if sum(map(bool, (self.classes, self.grades, chosen))) > 1:
            yield "give one of --classes, --grades and --label_columns"
        if (chosen or self.columns) and not has_table:
            yield "--label_columns and --columns need --labels"
        taken = {NONE, "path", *OPTIONAL}
        if taken & {*chosen} or SEPARATOR in "".join(chosen):
            yield f"--label_columns takes no name with {SEPARATOR}, and none of {sorted(taken)}"

    @property
    def label_kind(self) -> LabelKind:
        """What an example's label can be."""
        if self.label_columns:
            return kinds.MULTI_LABEL
        return kinds.GRADES if self.grades else kinds.CLASSES

    @property
    def cell_columns(self) -> tuple[str, ...]:
        """The columns of the table that hold the labels."""
        return self.label_columns or ("label",)

    def identity(self) -> dict[str, Any]:
        """Returns what decides the labels and the patients, by flag.

        Patterns that choose files are left out: the digest of the listing covers them. It
        also has what a table of labels says.
        """
        return {
            "layout": "",
            "patient_regex": self.patient_regex,
            "label_regex": self.label_regex,
            "modality": list(self.modality),
            "label_kind": self.label_kind.name,
        }
