"""The command line of the build, as one frozen value; what is left goes to Beam."""

from __future__ import annotations

import argparse
import dataclasses
import re
from collections.abc import Sequence
from pathlib import Path

from pipelines import errors
from pipelines.plan import DEFAULT_SHARD_SIZE_MB, PlanOptions
from pipelines.sources.listing import DEFAULT_GROUP_REGEX, ListingOptions
from tfrecord_io.preprocess import RESIZE_FILTERS, Preprocessing

SOURCES = ("archive", "directory", "synthetic")

_DESCRIPTION = """\
Turns an image collection into training-ready TFRecords, once.

The images are listed, shuffled over each split, decoded, resized, one-hot labelled and written as
shards of equal records. Kill it at any time: the same command goes on where it stopped.
"""

_EXAMPLES = """\
examples:
  python pipelines/build_tfrecords.py --source synthetic --output data/synthetic
  python pipelines/build_tfrecords.py --source archive --input kermany2018.zip --output data/oct
  python pipelines/build_tfrecords.py --source directory --input scans/ --output data/scans

All other flags are Beam's, for example --runner=DataflowRunner or --direct_num_workers=4.
"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class BuildOptions:
    """Everything the user chose.

    Attributes:
        source: a name in `SOURCES`.
        input: the archive or folder; the synthetic source needs none.
        output: folder or URL of the dataset.
        name: what the dataset is called.
        num_examples: images the synthetic source draws.
        download_dir: where the synthetic source keeps what it draws.
        listing: classes, tree and patients.
        preprocessing: size, channels and filter.
        plan: seed, shards and limit.
        max_reject_fraction: share of rejects that is accepted.
        overwrite: whether a dataset that differs is replaced.
        beam_args: the rest, for Beam.

    Raises:
        ValueError: if the choices contradict each other.
    """

    source: str
    input: str | None
    output: str
    name: str
    num_examples: int
    download_dir: Path
    listing: ListingOptions
    preprocessing: Preprocessing
    plan: PlanOptions
    max_reject_fraction: float
    overwrite: bool
    beam_args: tuple[str, ...]

    def __post_init__(self) -> None:
        if self.source == "synthetic" and self.input:
            raise ValueError("--source synthetic draws its images and takes no --input")
        if self.source != "synthetic" and not self.input:
            what = "a .zip, .tar or .tar.gz file" if self.source == "archive" else "a folder"
            raise ValueError(f"--source {self.source} needs --input, {what}")
        if not 0 <= self.max_reject_fraction <= 1:
            raise ValueError(
                f"--max_reject_fraction must be in 0..1, received {self.max_reject_fraction}"
            )
        if not re.fullmatch(r"[a-z][a-z0-9_]*", self.name):
            raise ValueError(
                f"--name must be lower-case letters, digits and underscores, received {self.name!r}"
            )


def parse_options(argv: Sequence[str]) -> BuildOptions:
    """Parses the command line.

    Raises:
        errors.UserError: if a value is wrong.
        SystemExit: from argparse, for --help and for flags it cannot read.
    """
    args, beam_args = _parser().parse_known_args(argv)
    height, width = args.image_size
    try:
        return BuildOptions(
            source=args.source,
            input=args.input,
            output=args.output,
            name=args.name or _default_name(args.source, args.input),
            num_examples=args.num_examples,
            download_dir=Path(args.download_dir),
            listing=ListingOptions(
                classes=tuple(args.classes), tree=args.tree, group_regex=args.group_regex
            ),
            preprocessing=Preprocessing(
                height=height, width=width, channels=args.channels, resize=args.resize
            ),
            plan=PlanOptions(
                seed=args.seed,
                shard_size_mb=args.shard_size_mb,
                num_shards=args.num_shards,
                limit=args.limit,
            ),
            max_reject_fraction=args.max_reject_fraction,
            overwrite=args.overwrite,
            beam_args=tuple(beam_args),
        )
    except ValueError as error:
        raise errors.UserError(str(error)) from None


def flag_names() -> list[str]:
    """Returns the flags of the build, such as `--source`."""
    return [name for action in _parser()._actions for name in action.option_strings]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="build_tfrecords.py",
        description=_DESCRIPTION,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        # An abbreviated flag of ours might be one of Beam's.
        allow_abbrev=False,
    )
    group = parser.add_argument_group("what goes in")
    group.add_argument(
        "--source",
        choices=SOURCES,
        default="synthetic",
        help="where the images come from (default: %(default)s, which needs no data)",
    )
    group.add_argument(
        "--input", metavar="PATH", help="the .zip, .tar or .tar.gz file, or the folder"
    )
    group.add_argument(
        "--classes",
        type=_names,
        default=(),
        metavar="A,B,...",
        help="class folders to use, in the order of their label indices (default: all, sorted)",
    )
    group.add_argument(
        "--tree",
        metavar="FOLDER",
        help="the folder in the input that holds train/, val/, test/, if there are several",
    )
    group.add_argument(
        "--group_regex",
        default=DEFAULT_GROUP_REGEX,
        metavar="REGEX",
        help="finds the patient in a file's name, as the first group (default: %(default)s)",
    )
    group.add_argument(
        "--limit",
        type=int,
        metavar="N",
        help="use at most N images of each split, drawn by the seed, for a trial",
    )
    group.add_argument(
        "--num_examples",
        type=int,
        default=2000,
        metavar="N",
        help="synthetic: images to draw (default: %(default)s)",
    )
    group.add_argument(
        "--download_dir",
        default="data/downloads",
        metavar="DIR",
        help="synthetic: where the drawn JPEGs are kept (default: %(default)s)",
    )
    group = parser.add_argument_group("what is made of it")
    group.add_argument(
        "--image_size",
        type=_image_size,
        default=(224, 224),
        metavar="N|HxW",
        help="height and width in pixels; the picture is stretched to fit (default: 224)",
    )
    group.add_argument(
        "--channels",
        type=int,
        choices=(1, 3),
        default=1,
        help="1 for grey, 3 for RGB (default: %(default)s)",
    )
    group.add_argument(
        "--resize",
        choices=tuple(RESIZE_FILTERS),
        default="bilinear",
        help="filter, always with antialiasing (default: %(default)s)",
    )
    group.add_argument(
        "--seed", type=int, default=0, help="of the shuffle and the drawing (default: %(default)s)"
    )
    group = parser.add_argument_group("what comes out")
    group.add_argument(
        "--output",
        default="data/tfrecords",
        metavar="DIR",
        help="folder or URL of the dataset (default: %(default)s)",
    )
    group.add_argument(
        "--name", help="what the dataset is called (default: after the source or the input)"
    )
    group.add_argument(
        "--shard_size_mb",
        type=float,
        metavar="MB",
        help=f"wanted size of a shard (default: {DEFAULT_SHARD_SIZE_MB}, which a network store "
        "streams at full speed; less for a small split, so that all cores share it)",
    )
    group.add_argument(
        "--num_shards",
        type=int,
        metavar="N",
        help="shards of the largest split instead of a size; the others get their share",
    )
    group.add_argument(
        "--max_reject_fraction",
        type=float,
        default=0.01,
        metavar="X",
        help="fail if more than this share of the images cannot be used (default: %(default)s)",
    )
    group.add_argument(
        "--overwrite",
        action="store_true",
        help="replace a dataset in the output folder that was made of other input or options",
    )
    return parser


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _image_size(text: str) -> tuple[int, int]:
    match = re.fullmatch(r"(\d+)(?:x(\d+))?", text)
    if not match:
        raise argparse.ArgumentTypeError(f"expected 224 or HEIGHTxWIDTH, received {text!r}")
    return int(match[1]), int(match[2] or match[1])


def _default_name(source: str, path: str | None) -> str:
    if source == "synthetic" or not path:
        return "synthetic_oct"
    stem = re.split(r"[./]", path.rstrip("/").rsplit("/", 1)[-1])[0]
    name = re.sub(r"[^a-z0-9]+", "_", stem.lower()).strip("_")
    return name if name[:1].isalpha() else f"images_{name}".rstrip("_")
