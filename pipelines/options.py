"""The build's command line: the options of each room, as one value; all other flags go to Beam."""

from __future__ import annotations

import argparse
import dataclasses
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pipelines import errors
from pipelines.listing.options import ListingOptions
from pipelines.planning.plan import PlanOptions
from pipelines.planning.splits import SplitOptions
from pipelines.sources import fashion_mnist
from pipelines.sources.factory import SourceOptions, Workers
from pipelines.stores.output import OutputOptions
from tfrecord_io import flags
from tfrecord_io.auditing.twins import MIN_SIDE
from tfrecord_io.decoding.options import (
    BACKGROUNDS,
    DTYPES,
    FITS,
    RESIZE_FILTERS,
    Physical,
    Preprocessing,
)
from tfrecord_io.flags import check, flag
from tfrecord_io.stores.folder import is_remote

# Values of `--runner`, in lower case, that mean the engine in this process.
_LOCAL_RUNNERS = ("directrunner", "fnapirunner", "bundlebaseddirectrunner", "direct")


def _image_size(text: str) -> tuple[int, int]:
    match = re.fullmatch(r"(\d+)(?:x(\d+))?", text)
    if not match:
        raise ValueError
    return int(match[1]), int(match[2] or match[1])


def _two_numbers(text: str) -> tuple[float, float]:
    first, second = map(float, text.split(","))
    return first, second


@dataclasses.dataclass(frozen=True, kw_only=True)
class ImageOptions:
    """What is stored of each picture.

    Raises:
        ValueError: if a value is wrong, or two options contradict each other.
    """

    image_size: tuple[int, int] | None = flag(
        None,
        "height and width in pixels (default: 224; 28 for fashion_mnist)",
        parse=_image_size,
        expected="224 or HEIGHTxWIDTH",
        metavar="N|HxW",
    )
    channels: int = flag(1, "1 for grey, 3 for RGB", choices=(1, 3))
    resize: str = flag(
        "bilinear", "resize filter, always with antialiasing", choices=tuple(RESIZE_FILTERS)
    )
    fit: str = flag(
        "stretch",
        "pictures of another shape: stretch changes it, pad keeps it and adds black",
        choices=tuple(FITS),
    )
    dtype: str = flag(
        "uint8",
        "type of the stored pixels; uint16 keeps the depth of 16-bit files, which uint8 rejects",
        choices=DTYPES,
    )
    window: tuple[float, float] | None = flag(
        None,
        "DICOM in uint8: the grey levels that become the 256 stored ones, such as 40,400 in "
        "Hounsfield units (default: what each file says, or the range of its stored bits)",
        parse=_two_numbers,
        expected="CENTER,WIDTH",
        metavar="CENTER,WIDTH",
    )
    rescale: tuple[float, float] | None = flag(
        None,
        "DICOM in uint16: the physical value of a stored number is SLOPE times the number plus "
        "INTERCEPT, in the unit of the files, such as Hounsfield units (default: 1,-32768)",
        parse=_two_numbers,
        expected="SLOPE,INTERCEPT",
        metavar="SLOPE,INTERCEPT",
    )
    background: str | None = flag(
        None,
        "what is behind transparent pixels (default: a file that has some is a reject)",
        choices=BACKGROUNDS,
    )

    def __post_init__(self) -> None:
        check(self)
        if self.rescale:
            Physical.of_unit("US", self.rescale)  # it checks the values
            if self.dtype != "uint16":
                raise ValueError("--rescale is for --dtype uint16")
        _ = self.preprocessing  # it checks the values together

    @property
    def preprocessing(self) -> Preprocessing:
        """How a file becomes pixels."""
        height, width = self.image_size or (224, 224)
        names = ("channels", "resize", "fit", "dtype", "window", "background")
        return Preprocessing(
            height=height, width=width, **{name: getattr(self, name) for name in names}
        )

    def identity(self) -> dict[str, Any]:
        """Returns what decides the pixels, by flag."""
        pixels = self.preprocessing
        return {
            "image_size": [pixels.height, pixels.width],
            "channels": self.channels,
            "resize": self.resize,
            **({"dtype": self.dtype, "format_version": 2} if self.dtype != "uint8" else {}),
            **({"background": self.background} if self.background else {}),
            **({"window": list(self.window)} if self.window else {}),
            **({"fit": self.fit} if self.fit != "stretch" else {}),
        }


#: The headings of --help, and the options below each, by their names in `BuildOptions`.
_HEADINGS = {
    "input": {"source": SourceOptions, "listing": ListingOptions},
    "splits": {"splits": SplitOptions},
    "images": {"images": ImageOptions},
    "order and shards": {"plan": PlanOptions},
    "output": {"output": OutputOptions},
}
_GROUPS: dict[str, type] = {
    name: group for groups in _HEADINGS.values() for name, group in groups.items()
}

_DESCRIPTION = """\
Turns an image collection into training-ready TFRecords, once.

The images are listed, shuffled over each split, decoded, resized, labelled and written as
shards of equal records. Kill it at any time: the same command resumes where it stopped.
"""

_EXAMPLES = """\
examples:
  {build}                              the OCT scans from Kaggle
  {build} --source synthetic --output data/synthetic
  {build} --source archive --input kermany2018.zip --output data/oct
  {build} --source directory --input scans/ --output data/scans
  {build} --source fashion_mnist --output data/fashion_mnist

All other flags are Beam's, for example --runner=DataflowRunner or --direct_num_workers=4.
"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class BuildOptions:
    """Everything the user chose: the options of each room, and the flags of Beam.

    What depends on the source is filled in: the name, and classes and size of Fashion-MNIST.

    Raises:
        ValueError: if options of two rooms contradict each other.
    """

    source: SourceOptions
    listing: ListingOptions
    splits: SplitOptions
    images: ImageOptions
    plan: PlanOptions
    output: OutputOptions
    beam_args: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.source.source == "fashion_mnist":
            if self.listing.labels:
                raise ValueError("--source fashion_mnist has labels of its own; leave --labels out")
            if not self.listing.label_names:
                self._fill_in("listing", classes=fashion_mnist.LABEL_NAMES)
            if not self.images.image_size:
                self._fill_in("images", image_size=fashion_mnist.IMAGE_SIZE)
        if self.output.name is None:
            self._fill_in("output", name=_default_name(self.source, self.output))
        if self.plan.variants and self.images.dtype != "uint8":
            raise ValueError(
                f"--variants copies images of uint8, not of {self.images.dtype}; leave it out: "
                "train/run.py augments images of any type while it trains"
            )
        height, width = self.images.preprocessing.image_shape[:2]
        if self.splits.leaks == "fail" and min(height, width) < MIN_SIDE:
            raise ValueError(
                f"--leaks fail cannot be checked with --image_size {height}x{width}: near "
                f"duplicates are found only in images stored with at least {MIN_SIDE} pixels per "
                "side. Choose a larger --image_size; or choose --leaks keep, and check the rest "
                f"with {flags.command('audit')} --max_leaked_patients 0 --max_duplicates 0"
            )
        folder, output = self.source.input or "", self.output.output
        is_local = folder and not is_remote(folder) and not is_remote(output)
        is_inside = is_local and Path(output).resolve().is_relative_to(Path(folder).resolve())
        if self.source.source == "directory" and is_inside:
            raise ValueError(
                f"--output {output} is inside --input {folder}: the next build would list the "
                "dataset as a class; choose an --output outside --input"
            )

    def _fill_in(self, group: str, **values: object) -> None:
        filled = dataclasses.replace(getattr(self, group), **values)
        object.__setattr__(self, group, filled)  # the dataclass is frozen

    @property
    def workers(self) -> Workers:
        """Where the images are decoded, which follows from Beam's `--runner`."""
        parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
        parser.add_argument("--runner")
        return workers_of(parser.parse_known_args(self.beam_args)[0].runner)


def workers_of(runner: str | None) -> Workers:
    """Returns where the images are decoded, by the value of Beam's `--runner`, if there is one."""
    name = (runner or "direct").rsplit(".", 1)[-1].lower()
    if name in _LOCAL_RUNNERS:
        return "here"
    return "dataflow" if "dataflow" in name else "cluster"


def parse_options(argv: Sequence[str]) -> BuildOptions:
    """Parses the command line.

    Raises:
        errors.UserError: if a value is wrong.
        SystemExit: from argparse, for --help and for a flag that lacks its value.
    """
    program = flags.command("build")
    parser = flags.Parser(
        prog=program,
        usage=f"{program} --source SOURCE --input PATH --output OUT [flags]",
        description=_DESCRIPTION,
        epilog=_EXAMPLES.format(build=program),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        # An abbreviation of a build flag could be one of Beam's flags.
        allow_abbrev=False,
    )
    for heading, groups in _HEADINGS.items():
        flags.add_flags(parser, heading, *groups.values())
    found, beam_args = parser.parse_known_args(argv)
    try:
        chosen = {name: flags.from_flags(group, found) for name, group in _GROUPS.items()}
        return BuildOptions(**chosen, beam_args=tuple(beam_args))
    except (ValueError, errors.UserError) as error:
        # A misspelled flag is among those of Beam, and its absence may be the error.
        given = [arg.partition("=")[0] for arg in beam_args if arg.startswith("--")]
        hints = [(name, flags.meant(name, flag_names())) for name in given]
        told = next((f"; {name} is unknown{hint}" for name, hint in hints if hint), "")
        raise errors.UserError(f"{error}{told}") from None


def flag_names() -> list[str]:
    """Returns the flags of the build, such as `--source`."""
    return [f"--{field.name}" for group in _GROUPS.values() for field in dataclasses.fields(group)]


def _default_name(source: SourceOptions, output: OutputOptions) -> str:
    if output.anonymize:
        return "images"
    if source.source == "synthetic":
        return "synthetic_oct"
    if source.source == "fashion_mnist":
        return "fashion_mnist"
    path = source.kaggle_dataset if source.source == "kaggle" else source.input or ""
    stem = re.split(r"[./]", path.rstrip("/").rsplit("/", 1)[-1])[0]
    name = re.sub(r"[^a-z0-9]+", "_", stem.lower()).strip("_")
    return name if name[:1].isalpha() else f"images_{name}".rstrip("_")
