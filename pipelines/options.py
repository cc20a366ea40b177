"""The command line of the build, as one frozen value; what is left goes to Beam."""

from __future__ import annotations

import argparse
import dataclasses
import re
from collections.abc import Sequence
from pathlib import Path

from pipelines import errors
from pipelines.drops import DropOptions
from pipelines.plan import DEFAULT_SHARD_SIZE_MB, PlanOptions
from pipelines.remote_files import is_remote
from pipelines.sources import fashion_mnist
from pipelines.sources.kaggle import download as kaggle
from pipelines.sources.listing import DEFAULT_GROUP_REGEX, ListingOptions
from pipelines.splits import DEFAULT_FRACTIONS, POLICIES, SplitOptions
from tfrecord_io.preprocess import RESIZE_FILTERS, Preprocessing

SOURCES = ("kaggle", "archive", "directory", "fashion_mnist", "synthetic")

# What a source does with --input: a description where it needs one, None where it takes none.
_INPUTS = {
    "archive": "a .zip, .tar or .tar.gz file",
    "directory": "a folder",
    "kaggle": None,
    "synthetic": None,
}

_DESCRIPTION = """\
Turns an image collection into training-ready TFRecords, once.

The images are listed, shuffled over each split, decoded, resized, one-hot labelled and written as
shards of equal records. Kill it at any time: the same command goes on where it stopped.
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


@dataclasses.dataclass(frozen=True, kw_only=True)
class BuildOptions:
    """Everything the user chose.

    Attributes:
        source: a name in `SOURCES`.
        input: the archive or folder; sources that fetch or draw their images need none.
        output: folder or URL of the dataset.
        name: what the dataset is called.
        kaggle_dataset: OWNER/NAME of the dataset that is downloaded from Kaggle.
        fashion_mnist_url: address of the folder with Fashion-MNIST's four files.
        num_examples: images the synthetic source draws.
        download_dir: where what is downloaded or drawn is kept.
        staging: URL of a folder to which a local archive is uploaded for remote workers.
        listing: classes, tree and patients.
        preprocessing: size, channels and filter.
        splits: who decides the splits, and what happens to patients in several of them.
        drops: what happens to pictures that are there more than once.
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
    kaggle_dataset: str
    fashion_mnist_url: str
    num_examples: int
    download_dir: Path
    staging: str | None
    listing: ListingOptions
    preprocessing: Preprocessing
    splits: SplitOptions
    drops: DropOptions
    plan: PlanOptions
    max_reject_fraction: float
    overwrite: bool
    beam_args: tuple[str, ...]

    def __post_init__(self) -> None:
        needed = _INPUTS.get(self.source, "")
        if needed and not self.input:
            raise ValueError(f"--source {self.source} needs --input, {needed}")
        if needed is None and self.input:
            raise ValueError(
                f"--source {self.source} takes no --input; for a file of your own give --source "
                "archive, for a folder --source directory"
            )
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
    is_fashion = args.source == "fashion_mnist"
    height, width = args.image_size or (fashion_mnist.IMAGE_SIZE if is_fashion else (224, 224))
    try:
        return BuildOptions(
            source=args.source,
            input=args.input,
            output=args.output,
            name=args.name or _default_name(args),
            kaggle_dataset=args.kaggle_dataset,
            fashion_mnist_url=args.fashion_mnist_url,
            num_examples=args.num_examples,
            download_dir=Path(args.download_dir),
            staging=args.staging,
            listing=ListingOptions(
                classes=args.classes or (fashion_mnist.LABEL_NAMES if is_fashion else ()),
                tree=args.tree,
                group_regex=args.group_regex,
            ),
            preprocessing=Preprocessing(
                height=height, width=width, channels=args.channels, resize=args.resize
            ),
            splits=SplitOptions(
                splits=args.splits,
                fractions=args.split_fractions,
                keep_split=args.keep_split,
                seed=args.split_seed,
                leaks=args.leaks,
            ),
            drops=DropOptions(duplicates=args.duplicates, leaks=args.leaks),
            plan=PlanOptions(
                seed=args.seed,
                shard_size_mb=args.shard_size_mb,
                num_shards=args.num_shards,
                limit=args.limit,
                variants=args.variants,
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
        default="kaggle",
        help="where the images come from (default: %(default)s, which downloads them and needs a "
        "free account; synthetic draws them and needs nothing)",
    )
    group.add_argument(
        "--input",
        metavar="PATH",
        help="archive: the .zip, .tar or .tar.gz file; directory: the folder; fashion_mnist: the "
        "folder with its four files, which are downloaded without it. A zip or folder may be a URL "
        "such as s3://bucket/scans.zip",
    )
    group.add_argument(
        "--kaggle_dataset",
        default=kaggle.DEFAULT_DATASET,
        metavar="OWNER/NAME",
        help="kaggle: the dataset to download (default: %(default)s)",
    )
    group.add_argument(
        "--fashion_mnist_url",
        default=fashion_mnist.BASE_URL,
        metavar="URL",
        help="fashion_mnist: where to download the four files (default: %(default)s)",
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
        help="where downloads and drawn images are kept and found again (default: %(default)s)",
    )
    group.add_argument(
        "--staging",
        metavar="URL",
        help="for an engine whose workers do not see this machine's disk, such as Dataflow: folder "
        "like gs://bucket/folder to which a local or downloaded zip is uploaded once",
    )
    group = parser.add_argument_group("who is in which split")
    group.add_argument(
        "--splits",
        choices=("source", "patient"),
        default="source",
        help="as the source's folders say, or anew, each patient in one split "
        "(default: %(default)s)",
    )
    group.add_argument(
        "--split_fractions",
        type=_fractions,
        metavar="A=X,B=Y,...",
        help="share of each split, for --splits patient (default: "
        + ",".join(f"{name}={share:g}" for name, share in DEFAULT_FRACTIONS)
        + ")",
    )
    group.add_argument(
        "--split_seed",
        type=_split_seed,
        default=0,
        metavar="N|auto",
        help="decides, with the patient's name, who goes where; auto looks for one that gives "
        "every class its share (default: %(default)s)",
    )
    group.add_argument(
        "--keep_split",
        metavar="SPLIT",
        help="leave this split of the source as it is, and what shares its patients out of the "
        "others",
    )
    group.add_argument(
        "--leaks",
        choices=POLICIES,
        default="keep",
        help="what to do with patients and pictures that are in several splits: keep and report "
        "them, drop them from the less protected split (test keeps its own, then val), or fail "
        "(default: %(default)s)",
    )
    group.add_argument(
        "--duplicates",
        choices=POLICIES,
        default="keep",
        help="what to do with images of exactly the same stored pixels: keep and report them, "
        "drop all but one, or fail (default: %(default)s)",
    )
    group = parser.add_argument_group("what is made of it")
    group.add_argument(
        "--image_size",
        type=_image_size,
        metavar="N|HxW",
        help="height and width in pixels; the picture is stretched to fit (default: 224, for "
        "fashion_mnist its own 28)",
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
        "--variants",
        type=int,
        default=0,
        metavar="K",
        help="augmented copies of each image of the train split, made once: mirrored, turned and "
        "moved a little, brighter or darker, with speckle (default: %(default)s)",
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


def _default_name(args: argparse.Namespace) -> str:
    if args.source in ("synthetic", "fashion_mnist"):
        return {"synthetic": "synthetic_oct", "fashion_mnist": "fashion_mnist"}[args.source]
    path = args.kaggle_dataset if args.source == "kaggle" else args.input or ""
    stem = re.split(r"[./]", path.rstrip("/").rsplit("/", 1)[-1])[0]
    name = re.sub(r"[^a-z0-9]+", "_", stem.lower()).strip("_")
    return name if name[:1].isalpha() else f"images_{name}".rstrip("_")
