"""The build's command line as one frozen dataclass; all other flags go to Beam."""

from __future__ import annotations

import argparse
import dataclasses
import functools
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

from pipelines import errors
from pipelines.listing.label_table import LabelTable, read_label_table
from pipelines.listing.listing import DEFAULT_GROUP_REGEX, ListingOptions
from pipelines.planning.anonymous import Secret, private_errors, read_secret
from pipelines.planning.plan import DEFAULT_SHARD_SIZE_MB, PlanOptions
from pipelines.planning.splits import DEFAULT_FRACTIONS, POLICIES, Policy, SplitOptions
from pipelines.shards.build import DropOptions
from pipelines.shards.write import EXAMPLE_SCHEMA
from pipelines.sources import fashion_mnist
from pipelines.sources.kaggle import download as kaggle
from pipelines.sources.source_options import SourceOptions
from pipelines.stores.remote import is_remote
from tfrecord_io.decoding.preprocess import DTYPES, RESIZE_FILTERS, Preprocessing
from tfrecord_io.kinds.classes import CLASSES
from tfrecord_io.kinds.grades import GRADES
from tfrecord_io.kinds.label_kind import LabelKind
from tfrecord_io.kinds.multi_label import MULTI_LABEL, NONE, SEPARATOR
from tfrecord_io.kinds.numbers import NUMBER

#: Values of `--runner`, in lower case, that mean the engine in this process.
LOCAL_RUNNERS = ("directrunner", "fnapirunner", "bundlebaseddirectrunner", "direct")

SOURCES = ("kaggle", "archive", "directory", "fashion_mnist", "synthetic")

DEFAULT_IMAGE_SIZE = (224, 224)

#: Headings of the groups of flags in --help.
_IN = "input"
_SPLITS = "splits"
_MADE = "images"
_OUT = "output"

# What --input must be for a source that requires it; None for a source that accepts no --input.
_INPUTS = {
    "archive": "a .zip, .tar or .tar.gz file",
    "directory": "a folder",
    "kaggle": None,
    "synthetic": None,
}

_DESCRIPTION = """\
Turns an image collection into training-ready TFRecords, once.

The images are listed, shuffled over each split, decoded, resized, labelled and written as
shards of equal records. Kill it at any time: the same command resumes where it stopped.
"""

_EXAMPLES = """\
examples:
  python pipelines/build_tfrecords.py                              the OCT scans from Kaggle
  python pipelines/build_tfrecords.py --source synthetic --output data/synthetic
  python pipelines/build_tfrecords.py --source archive --input kermany2018.zip --output data/oct
  python pipelines/build_tfrecords.py --source directory --input scans/ --output data/scans
  python pipelines/build_tfrecords.py --source fashion_mnist --output data/fashion_mnist

All other flags are Beam's, for example --runner=DataflowRunner or --direct_num_workers=4.
"""


def _names(text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(","))
    if not all(names):
        raise argparse.ArgumentTypeError(f"a name is empty, or a comma too many, in {text!r}")
    return names


def _fractions(text: str) -> tuple[tuple[str, float], ...]:
    pairs = [part.partition("=") for part in text.split(",")]
    try:
        return tuple((name.strip(), float(share)) for name, _, share in pairs)
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"expected shares like train=0.8,val=0.1,test=0.1, received {text!r}"
        ) from None


def _split_seed(text: str) -> int | None:
    """Returns the seed, or None for `auto`."""
    if text == "auto":
        return None
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected a number or auto, received {text!r}") from None


def _image_size(text: str) -> tuple[int, int]:
    match = re.fullmatch(r"(\d+)(?:x(\d+))?", text)
    if not match:
        raise argparse.ArgumentTypeError(f"expected 224 or HEIGHTxWIDTH, received {text!r}")
    return int(match[1]), int(match[2] or match[1])


def _window(text: str) -> tuple[float, float]:
    try:
        center, width = map(float, text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected CENTER,WIDTH, received {text!r}") from None
    return center, width


def _flag(
    default: Any,
    group: str,
    text: str,
    *,
    kind: Callable[[str], Any] = str,
    choices: Sequence[Any] | None = None,
    metavar: str | None = None,
) -> Any:
    """Declares a field and its flag.

    Args:
        default: the default of the field and the flag.
        group: the heading in --help under which the flag is listed.
        text: the help text.
        kind: converts the flag's text to the field's value; `bool` for a flag without a value.
        choices: the allowed values; any value is allowed if None.
        metavar: the name of the value in --help.
    """
    settings: dict[str, Any] = {"default": default, "help": text}
    if kind is bool:
        settings["action"] = "store_true"
    else:
        settings |= {"type": kind, "choices": choices, "metavar": metavar}
    return dataclasses.field(default=default, metadata={"group": group, "argparse": settings})


@dataclasses.dataclass(frozen=True, kw_only=True)
class BuildOptions:
    """Everything the user chose.

    Each field except `beam_args` is a flag of the same name.

    Raises:
        ValueError: if a value is out of range, or two options contradict each other.
    """

    source: str = _flag(
        "kaggle",
        _IN,
        "where the images come from (default: %(default)s, which downloads them and needs a "
        "free account; synthetic draws them and needs no account)",
        choices=SOURCES,
    )
    input: str | None = _flag(
        None,
        _IN,
        "archive: the .zip, .tar or .tar.gz file; directory: the folder; "
        "fashion_mnist: the folder with its four files (default: download them). A zip or folder "
        "may be a URL such as s3://bucket/scans.zip",
        metavar="PATH",
    )
    kaggle_dataset: str = _flag(
        kaggle.DEFAULT_DATASET,
        _IN,
        "kaggle: the dataset to download (default: %(default)s)",
        metavar="OWNER/NAME",
    )
    fashion_mnist_url: str = _flag(
        fashion_mnist.BASE_URL,
        _IN,
        "fashion_mnist: where to download the four files from (default: %(default)s)",
        metavar="URL",
    )
    classes: tuple[str, ...] = _flag(
        (),
        _IN,
        "class folders to use, in the order of their label indices (default: all, sorted)",
        kind=_names,
        metavar="A,B,...",
    )
    grades: tuple[str, ...] = _flag(
        (),
        _IN,
        "the classes to use, instead of --classes, if they are grades: from the lowest to the "
        "highest",
        kind=_names,
        metavar="A,B,...",
    )
    tree: str | None = _flag(
        None,
        _IN,
        "the folder in the input that holds train/, val/ and test/, if several folders do",
        metavar="FOLDER",
    )
    group_regex: str = _flag(
        DEFAULT_GROUP_REGEX,
        _IN,
        "pattern whose first group is the patient in a file's name (default: %(default)s)",
        metavar="REGEX",
    )
    labels: Path | None = _flag(  # noqa: RUF009 - it makes a field
        None,
        _IN,
        "table with the columns path and label, and patient, split and site if known, a row for "
        "each image: a .csv or .parquet file. Folders then say nothing about the class",
        kind=Path,
        metavar="FILE",
    )
    label_columns: tuple[str, ...] = _flag(
        (),
        _IN,
        "columns of the table of --labels that hold a 0 or a 1 for each of several labels, instead "
        "of the column label",
        kind=_names,
        metavar="A,B,...",
    )
    target: str | None = _flag(
        None,
        _IN,
        "column of the table of --labels that holds a number for each image, or with --grades its "
        "grade, instead of the column label",
        metavar="COLUMN",
    )
    limit: int | None = _flag(
        None,
        _IN,
        "use at most N images of each split, drawn by the seed, for a trial",
        kind=int,
        metavar="N",
    )
    num_examples: int = _flag(
        2000, _IN, "synthetic: images to draw (default: %(default)s)", kind=int, metavar="N"
    )
    download_dir: Path = _flag(  # noqa: RUF009 - it makes a field
        Path("data/downloads"),
        _IN,
        "where downloads and drawn images are kept for later builds (default: %(default)s)",
        kind=Path,
        metavar="DIR",
    )
    staging: str | None = _flag(
        None,
        _IN,
        "for workers that cannot read this machine's disk, such as Dataflow's: folder such as "
        "gs://bucket/folder to which a local or downloaded zip is uploaded once",
        metavar="URL",
    )

    splits: Literal["source", "patient"] = _flag(
        "source",
        _SPLITS,
        "source: keep the splits of the source's folders; patient: make new splits, with each "
        "patient in one split (default: %(default)s)",
        choices=("source", "patient"),
    )
    split_fractions: tuple[tuple[str, float], ...] | None = _flag(
        None,
        _SPLITS,
        "share of each split, for --splits patient (default: "
        + ",".join(f"{name}={share:g}" for name, share in DEFAULT_FRACTIONS)
        + ")",
        kind=_fractions,
        metavar="A=X,B=Y,...",
    )
    split_seed: int | None = _flag(
        0,
        _SPLITS,
        "decides, with the patient's name, which split a patient is in; auto searches for a seed "
        "that gives every class its share (default: %(default)s)",
        kind=_split_seed,
        metavar="N|auto",
    )
    keep_split: str | None = _flag(
        None,
        _SPLITS,
        "keep this split of the source as it is, and leave its patients out of the other splits",
        metavar="SPLIT",
    )
    leaks: Policy = _flag(  # noqa: RUF009 - it makes a field
        "keep",
        _SPLITS,
        "what to do with patients and pictures that are in several splits: keep and report "
        "them, drop them from the less protected split (test is protected most, then val), or "
        "fail (default: %(default)s)",
        choices=POLICIES,
    )
    duplicates: Policy = _flag(  # noqa: RUF009 - it makes a field
        "keep",
        _SPLITS,
        "what to do with images of exactly the same stored pixels: keep and report them, "
        "drop all but one (all, if their labels differ), or fail (default: %(default)s)",
        choices=POLICIES,
    )

    image_size: tuple[int, int] = _flag(
        None,
        _MADE,
        "height and width in pixels; the picture is stretched to fit (default: 224; 28 for "
        "fashion_mnist)",
        kind=_image_size,
        metavar="N|HxW",
    )
    channels: int = _flag(
        1, _MADE, "1 for grey, 3 for RGB (default: %(default)s)", kind=int, choices=(1, 3)
    )
    resize: str = _flag(
        "bilinear",
        _MADE,
        "resize filter, always with antialiasing (default: %(default)s)",
        choices=tuple(RESIZE_FILTERS),
    )
    dtype: str = _flag(
        "uint8",
        _MADE,
        "type of the stored pixels; uint16 keeps the depth of 16-bit files, which uint8 rejects "
        "(default: %(default)s)",
        choices=DTYPES,
    )
    window: tuple[float, float] | None = _flag(
        None,
        _MADE,
        "DICOM in uint8: the grey levels that become the 256 stored ones, such as 40,400 in "
        "Hounsfield units (default: what each file says, or the range of its stored bits)",
        kind=_window,
        metavar="CENTER,WIDTH",
    )
    variants: int = _flag(
        0,
        _MADE,
        "augmented copies of each image of the train split, made once: mirrored, rotated and "
        "shifted a little, brighter or darker, with speckle (default: %(default)s)",
        kind=int,
        metavar="K",
    )
    seed: int = _flag(
        0, _MADE, "seed of the shuffle and of synthetic images (default: %(default)s)", kind=int
    )

    output: str = _flag(
        "data/tfrecords",
        _OUT,
        "folder or URL of the dataset (default: %(default)s)",
        metavar="DIR",
    )
    name: str = _flag(
        None, _OUT, "name of the dataset (default: made from the source or the input)"
    )
    shard_size_mb: float | None = _flag(
        None,
        _OUT,
        f"wanted size of a shard (default: {DEFAULT_SHARD_SIZE_MB}, which a network store "
        "streams at full speed; smaller for a small split, so that all cores get work)",
        kind=float,
        metavar="MB",
    )
    num_shards: int | None = _flag(
        None,
        _OUT,
        "number of shards of the largest split, instead of a size; the other splits get "
        "proportionally fewer",
        kind=int,
        metavar="N",
    )
    max_reject_fraction: float = _flag(
        0.01,
        _OUT,
        "fail if more than this share of the images cannot be used (default: %(default)s)",
        kind=float,
        metavar="X",
    )
    anonymize: Path | None = _flag(  # noqa: RUF009 - it makes a field
        None,
        _OUT,
        "put no name or path of the input into any output: images and patients get codes, made "
        "with the secret in FILE, which stays outside --output (docs/privacy.md)",
        kind=Path,
        metavar="FILE",
    )
    overwrite: bool = _flag(
        False,
        _OUT,
        "replace a dataset in the output folder that was made from other input or options",
        kind=bool,
    )

    beam_args: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        self._fill_in()
        needed = _INPUTS.get(self.source, "")
        if needed and not self.input:
            raise ValueError(f"--source {self.source} needs --input, {needed}")
        if needed is None and self.input:
            raise ValueError(
                f"--source {self.source} takes no --input; use --source archive for your own "
                "archive, or --source directory for a folder"
            )
        if self.labels and self.source == "fashion_mnist":
            raise ValueError("--source fashion_mnist has labels of its own; leave --labels out")
        self._check_label_columns()
        self._check_target()
        kaggle.check_dataset_name(self.kaggle_dataset)
        if self.staging and not is_remote(self.staging):
            raise ValueError(
                f"--staging must be a URL such as gs://bucket/folder, received {self.staging!r}"
            )
        if not self.output.strip("/"):
            raise ValueError(f"--output must be a folder of its own, received {self.output!r}")
        if not 0 <= self.max_reject_fraction <= 1:
            raise ValueError(
                f"--max_reject_fraction must be in 0..1, received {self.max_reject_fraction}"
            )
        if self.variants and self.dtype != "uint8":
            raise ValueError(
                f"--variants copies images of uint8, not of {self.dtype}; leave it out: "
                "train/run.py augments images of any type while it trains"
            )
        if not re.fullmatch(r"[a-z][a-z0-9_]*", self.name):
            raise ValueError(
                f"--name must be lower-case letters, digits and underscores, received {self.name!r}"
            )
        # Each of these properties makes a dataclass that checks its own values.
        _ = self.secret, self.listing, self.preprocessing, self.splitting, self.drops, self.plan

    @property
    def label_kind(self) -> LabelKind:
        """What an example's label can be."""
        if self.label_columns:
            return MULTI_LABEL
        if self.grades:
            return GRADES
        return NUMBER if self.target else CLASSES

    @property
    def label_names(self) -> tuple[str, ...]:
        """The names of the labels in the order of their indices, if the user gave them."""
        if self.label_kind.is_number:
            return (self.target or "",)
        return self.label_columns or self.grades or self.classes

    def _check_label_columns(self) -> None:
        names = self.label_columns
        if not names:
            return
        if not self.labels or self.classes:
            raise ValueError("--label_columns needs --labels, and no --classes")
        if len(set(names)) != len(names) or any(SEPARATOR in name for name in names):
            raise ValueError(
                f"--label_columns takes each column once, and no name with {SEPARATOR}; received "
                + ",".join(names)
            )
        if taken := {NONE, "path", "patient", "split", "site"} & set(names):
            raise ValueError(
                f"--label_columns cannot have a label named {', '.join(sorted(taken))}; rename the "
                "column"
            )

    def _check_target(self) -> None:
        if self.grades and (self.classes or self.label_columns):
            raise ValueError("--grades takes the place of --classes and --label_columns")
        if len(set(self.grades)) != len(self.grades) or len(self.grades) == 1:
            raise ValueError(
                f"--grades takes two or more different names; received {','.join(self.grades)}"
            )
        if self.target is None:
            return
        if not self.labels or self.classes or self.label_columns:
            raise ValueError("--target needs --labels, and no --classes or --label_columns")
        if self.target in ("", "path", "patient", "split", "site"):
            raise ValueError(
                f"--target must name a column with numbers or grades, received {self.target!r}"
            )

    def _fill_in(self) -> None:
        """Fills in the defaults that depend on the source."""
        is_fashion = self.source == "fashion_mnist"
        chosen = {
            "name": self.name or _default_name(self),
            "classes": self.classes or (fashion_mnist.LABEL_NAMES if is_fashion else ()),
            "image_size": self.image_size
            or (fashion_mnist.IMAGE_SIZE if is_fashion else DEFAULT_IMAGE_SIZE),
        }
        for field, value in chosen.items():
            object.__setattr__(self, field, value)  # the dataclass is frozen

    @property
    def workers(self) -> Literal["here", "cluster", "dataflow"]:
        """Where the images are decoded, which follows from Beam's `--runner`."""
        parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
        parser.add_argument("--runner", default="direct")
        runner = parser.parse_known_args(self.beam_args)[0].runner.rsplit(".", 1)[-1].lower()
        if runner in LOCAL_RUNNERS:
            return "here"
        return "dataflow" if "dataflow" in runner else "cluster"

    @property
    def source_options(self) -> SourceOptions:
        """The options of the source."""
        names = {field.name for field in dataclasses.fields(SourceOptions)}
        return SourceOptions(**{name: getattr(self, name) for name in names})

    @functools.cached_property
    def secret(self) -> Secret | None:
        """The secret that makes the dataset anonymous, if it is to be."""
        if self.anonymize is None:
            return None
        return read_secret(self.anonymize, output=self.output, source=self.input)

    @functools.cached_property
    def listing(self) -> ListingOptions:
        """The options of the listing: classes, tree, patients and labels."""
        return ListingOptions(
            classes=self.grades or self.classes,
            tree=self.tree,
            group_regex=self.group_regex,
            labels=self._read_labels(self.labels),
            label_kind=self.label_kind,
        )

    def _read_labels(self, file: Path | None) -> LabelTable | None:
        if file is None:
            return None
        with private_errors(self.secret):
            return read_label_table(
                file,
                kind=self.label_kind,
                columns=self.label_columns or (self.target or "label",),
                reserved=EXAMPLE_SCHEMA.names,
            )

    @property
    def preprocessing(self) -> Preprocessing:
        """The options of the decoder: size, channels, filter and type."""
        height, width = self.image_size
        return Preprocessing(
            height=height,
            width=width,
            channels=self.channels,
            resize=self.resize,
            dtype=self.dtype,
            window=self.window,
        )

    @property
    def splitting(self) -> SplitOptions:
        """How the splits are made, and what happens to patients who are in several."""
        return SplitOptions(
            splits=self.splits,
            fractions=self.split_fractions,
            keep_split=self.keep_split,
            seed=self.split_seed,
            leaks=self.leaks,
        )

    @property
    def drops(self) -> DropOptions:
        """What happens to pictures that occur more than once."""
        return DropOptions(duplicates=self.duplicates, leaks=self.leaks)

    @property
    def plan(self) -> PlanOptions:
        """The options of the plan: seed, shards, limit and variants."""
        return PlanOptions(
            seed=self.seed,
            shard_size_mb=self.shard_size_mb,
            num_shards=self.num_shards,
            limit=self.limit,
            variants=self.variants,
        )


def parse_options(argv: Sequence[str]) -> BuildOptions:
    """Parses the command line.

    Args:
        argv: the command line without the program's name.

    Raises:
        errors.UserError: if a value is wrong.
        SystemExit: from argparse, for --help and for flags it cannot read.
    """
    found, beam_args = _parser().parse_known_args(argv)
    try:
        return BuildOptions(**vars(found), beam_args=tuple(beam_args))
    except ValueError as error:
        raise errors.UserError(str(error)) from None


def flag_names() -> list[str]:
    """Returns the flags of the build, such as `--source`."""
    return [f"--{field.name}" for field in _flag_fields()]


def _flag_fields() -> list[dataclasses.Field[Any]]:
    return [field for field in dataclasses.fields(BuildOptions) if "argparse" in field.metadata]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="build_tfrecords.py",
        description=_DESCRIPTION,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        # An abbreviation of a build flag could be one of Beam's flags.
        allow_abbrev=False,
    )
    groups = {title: parser.add_argument_group(title) for title in (_IN, _SPLITS, _MADE, _OUT)}
    for field in _flag_fields():
        group = groups[field.metadata["group"]]
        group.add_argument(f"--{field.name}", **field.metadata["argparse"])
    return parser


def _default_name(options: BuildOptions) -> str:
    if options.anonymize:
        return "images"
    if options.source == "synthetic":
        return "synthetic_oct"
    if options.source == "fashion_mnist":
        return "fashion_mnist"
    path = options.kaggle_dataset if options.source == "kaggle" else options.input or ""
    stem = re.split(r"[./]", path.rstrip("/").rsplit("/", 1)[-1])[0]
    name = re.sub(r"[^a-z0-9]+", "_", stem.lower()).strip("_")
    return name if name[:1].isalpha() else f"images_{name}".rstrip("_")
