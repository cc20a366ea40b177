"""The build's command line, as one value; flags that are not the build's go to Beam."""

from __future__ import annotations

import argparse
import dataclasses
import re
from collections.abc import Sequence

from pipelines import errors
from pipelines.extras import codes, exclude, preview, rename
from pipelines.listing.options import ListingOptions
from pipelines.planning.plan import PlanOptions
from pipelines.planning.splits import SplitOptions
from pipelines.sources.factory import SourceOptions, Workers
from pipelines.stores.output_folder import OutputOptions
from tfrecord_io.decoding.options import Preprocessing
from tfrecord_io.terminal import flags
from tfrecord_io.terminal.address import is_inside, is_remote
from tfrecord_io.terminal.flags import flag

# Values of `--runner`, in lower case, that mean the engine in this process.
_LOCAL_RUNNERS = ("directrunner", "fnapirunner", "bundlebaseddirectrunner", "direct")

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


def _image_size(text: str) -> tuple[int, int]:
    match = re.fullmatch(r"(\d+)(?:x(\d+))?", text)
    if not match:
        raise ValueError
    return int(match[1]), int(match[2] or match[1])


@dataclasses.dataclass(frozen=True, kw_only=True)
class _ImageSize:
    """What becomes the height and width of `Preprocessing`."""

    image_size: tuple[int, int] | None = flag(
        None,
        "height and width in pixels (default: 224; for npz those of the images)",
        parse=_image_size,
        expected="224 or HEIGHTxWIDTH",
        metavar="N|HxW",
    )


#: The headings of --help, and the options below each, by their names in `BuildOptions`.
_HEADINGS: dict[str, dict[str, type]] = {
    "input": {
        "source": SourceOptions,
        "listing": ListingOptions,
        "exclude": exclude.Options,
        "rename": rename.Options,
        "codes": codes.Options,
    },
    "splits": {"splits": SplitOptions},
    "images": {"size": _ImageSize, "pixels": Preprocessing},
    "order and shards": {"plan": PlanOptions},
    "output": {"output": OutputOptions, "preview": preview.Options},
}
_GROUPS = {name: group for groups in _HEADINGS.values() for name, group in groups.items()}
_FIELDS = [field for group in _GROUPS.values() for field, _ in flags.fields_of(group)]

#: The flags of the build, such as `--source`.
FLAG_NAMES = [
    f"--{name}"
    for field in _FIELDS
    for name in (field.name, field.metadata.get("alias"))
    if name is not None
]


@dataclasses.dataclass(frozen=True, kw_only=True)
class BuildOptions:
    """Everything the user chose, and the flags of Beam.

    Raises:
        ValueError: if options of two groups contradict each other.
    """

    source: SourceOptions
    listing: ListingOptions
    exclude: exclude.Options
    rename: rename.Options
    codes: codes.Options
    splits: SplitOptions
    pixels: Preprocessing
    plan: PlanOptions
    output: OutputOptions
    preview: preview.Options
    beam_args: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        source, output = self.source, self.output.output
        folder = source.input or ""
        if source.source == "directory" and not is_remote(folder) and is_inside(output, folder):
            raise ValueError(
                f"--output {output} is inside --input {folder}: the next build would list the "
                "dataset as a class; choose an --output outside --input"
            )
        if self.pixels.fit != "pad" and self.pixels.min_fill != Preprocessing.min_fill:
            raise ValueError("--min_fill is for --fit pad")
        if self.preview.preview and source.input is None:
            raise ValueError(
                "--preview lists an --input; without one, the build first downloads or draws images"
            )

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
    """Parses the command line, without the program.

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
        allow_abbrev=False,  # Beam's flags may begin like these
    )
    for heading, groups in _HEADINGS.items():
        flags.add_flags(parser, heading, *groups.values())
    namespace, beam_args = parser.parse_known_args(argv)
    try:
        values = {name: flags.given(group, namespace) for name, group in _GROUPS.items()}
        source = SourceOptions(**values.pop("source"))
        if "labels" not in values["listing"]:
            values["listing"]["rows"] = source.arrays
        size = values.pop("size").get("image_size")
        if size is None and source.arrays:
            size = source.arrays.image_size
        if size is not None:
            values["pixels"] |= {"height": size[0], "width": size[1]}
        chosen = {name: _GROUPS[name](**given) for name, given in values.items()}
        return BuildOptions(source=source, **chosen, beam_args=tuple(beam_args))
    except (ValueError, errors.UserError) as error:
        # A misspelled flag is among those of Beam, and its absence may be the error.
        named = [arg.partition("=")[0] for arg in beam_args if arg.startswith("--")]
        hints = [(name, flags.meant(name, FLAG_NAMES)) for name in named]
        advice = next((f"; {name} is unknown{hint}" for name, hint in hints if hint), "")
        raise errors.UserError(f"{error}{advice}") from None
