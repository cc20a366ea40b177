"""The build's command line: the options of each room, as one value; all other flags go to Beam."""

from __future__ import annotations

import argparse
import dataclasses
import re
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

from pipelines import errors
from pipelines.listing.options import ListingOptions
from pipelines.planning.plan import PlanOptions
from pipelines.planning.splits import SplitOptions
from pipelines.sources.factory import SourceOptions, Workers
from pipelines.stores.output_folder import OutputOptions
from tfrecord_io.decoding.options import Preprocessing
from tfrecord_io.terminal import flags
from tfrecord_io.terminal.address import is_inside, is_remote
from tfrecord_io.terminal.flags import flag

_Extra = TypeVar("_Extra")

# Values of `--runner`, in lower case, that mean the engine in this process.
_LOCAL_RUNNERS = ("directrunner", "fnapirunner", "bundlebaseddirectrunner", "direct")


def _image_size(text: str) -> tuple[int, int]:
    match = re.fullmatch(r"(\d+)(?:x(\d+))?", text)
    if not match:
        raise ValueError
    return int(match[1]), int(match[2] or match[1])


@dataclasses.dataclass(frozen=True, kw_only=True)
class ImageOptions:
    """What `Preprocessing` gets from the user in another form."""

    image_size: tuple[int, int] | None = flag(
        None,
        "height and width in pixels (default: 224; for npz those of the images)",
        parse=_image_size,
        expected="224 or HEIGHTxWIDTH",
        metavar="N|HxW",
    )


#: The headings of --help, and the options below each, by their names in `BuildOptions`.
_HEADINGS = {
    "input": {"source": SourceOptions, "listing": ListingOptions},
    "splits": {"splits": SplitOptions},
    "images": {"images": ImageOptions, "pixels": Preprocessing},
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
  {build} --input kermany2018.zip --output data/oct
  {build} --input scans/ --output data/scans

Flags that are not listed here are Beam's, for example --runner=DataflowRunner or
--direct_num_workers=4.
"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class BuildOptions:
    """Everything the user chose: the options of each room and extra, and the flags of Beam.

    The size of images in arrays is filled in.

    Raises:
        ValueError: if options of two rooms contradict each other.
    """

    source: SourceOptions
    listing: ListingOptions
    splits: SplitOptions
    images: ImageOptions
    pixels: Preprocessing
    plan: PlanOptions
    output: OutputOptions
    extras: tuple[Any, ...] = ()
    beam_args: tuple[str, ...] = ()

    def of(self, kind: type[_Extra]) -> _Extra:
        """Returns the options of an extra, by their class."""
        return next((each for each in self.extras if isinstance(each, kind)), kind())

    def __post_init__(self) -> None:
        arrays = self.source.arrays
        if arrays and not self.images.image_size:
            self._fill_in("images", image_size=arrays.image_size)
        if self.images.image_size:
            height, width = self.images.image_size
            self._fill_in("pixels", height=height, width=width)
        folder, output = self.source.input or "", self.output.output
        is_tree = self.source.source == "directory" and not is_remote(folder)
        if is_tree and folder and is_inside(output, folder):
            raise ValueError(
                f"--output {output} is inside --input {folder}: the next build would list the "
                "dataset as a class; choose an --output outside --input"
            )
        self._require_used()

    def _require_used(self) -> None:
        """Raises a ValueError for a flag that the others leave without a meaning."""
        source, pixels = self.source, self.pixels
        if pixels.fit != "pad" and pixels.min_fill != Preprocessing.min_fill:
            raise ValueError("--min_fill is for --fit pad")
        is_here = source.input is not None and not is_remote(self.output.output)
        if is_here and source.download_dir != SourceOptions.download_dir:
            raise ValueError(
                "--download_dir is for what is downloaded or drawn, or unpacked for an --output in "
                "a bucket; leave it out"
            )

    @property
    def flag_names(self) -> list[str]:
        """The flags of the build, such as `--source`."""
        return _flag_names([*_GROUPS.values(), *map(type, self.extras)])

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


def parse_options(argv: Sequence[str], extras: Sequence[type] = ()) -> BuildOptions:
    """Parses the command line.

    Args:
        argv: the command line, without the program.
        extras: the options of the extras, each a dataclass with a `heading` of --help.

    Raises:
        errors.UserError: if a value is wrong.
        SystemExit: from argparse, for --help and for a flag that lacks its value.
    """
    program = flags.command("build")
    parser = flags.Parser(
        prog=program,
        usage=f"{program} --input PATH --output OUT [flags]",
        description=_DESCRIPTION,
        epilog=_EXAMPLES.format(build=program),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    every = (*_GROUPS.values(), *extras)
    for heading, groups in _HEADINGS.items():
        some = (*groups.values(), *(extra for extra in extras if extra.heading == heading))
        flags.add_flags(parser, heading, *some)
    namespace, beam_args = parser.parse_known_args(argv)
    try:
        values_of = {name: flags.given(group, namespace) for name, group in _GROUPS.items()}
        source = SourceOptions(**values_of.pop("source"))
        if "labels" not in values_of["listing"]:
            values_of["listing"]["rows"] = source.arrays
        chosen = {name: _GROUPS[name](**values) for name, values in values_of.items()}
        more = tuple(extra(**flags.given(extra, namespace)) for extra in extras)
        return BuildOptions(source=source, **chosen, extras=more, beam_args=tuple(beam_args))
    except (ValueError, errors.UserError) as error:
        # A misspelled flag is among those of Beam, and its absence may be the error.
        named = [arg.partition("=")[0] for arg in beam_args if arg.startswith("--")]
        hints = [(name, flags.meant(name, _flag_names(every))) for name in named]
        advice = next((f"; {name} is unknown{hint}" for name, hint in hints if hint), "")
        raise errors.UserError(f"{error}{advice}") from None


def _flag_names(groups: Iterable[type]) -> list[str]:
    fields = [field for group in groups for field, _ in flags.fields_of(group)]
    aliases = [field.metadata["alias"] for field in fields if "alias" in field.metadata]
    return [f"--{name}" for name in (*(field.name for field in fields), *aliases)]
