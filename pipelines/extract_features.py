"""Stores the features that the frozen part of a network gives for each image of a dataset.

    python pipelines/extract_features.py --data OUT --trunk trunk.keras --output FEATURES

The output is a dataset too, whose images are feature maps. `train/run.py` trains the layers above
the trunk on it. The job resumes, runs on the same engines and is verified like a build.
"""

from __future__ import annotations

import dataclasses
import gc
import sys
from collections.abc import Sequence

from pipelines import errors
from pipelines.build_tfrecords import run
from pipelines.engine import launch
from pipelines.engine.feature_job import FeatureOptions, prepared_features
from tfrecord_io import flags

_EPILOG = """\
All other flags are Beam's, as for build_tfrecords.py. On this machine one process writes all
shards, because Keras uses every core; --direct_num_workers=2 starts two.
"""


def extract(argv: Sequence[str]) -> None:
    """Plans the shards, writes them and finishes the dataset.

    Raises:
        errors.UserError: if the usage or the input is wrong.
        errors.BuildError: if the extraction could not be finished.
    """
    parser = flags.Parser(
        prog=flags.command("features"),
        description=(__doc__ or "").partition("\n")[0],
        epilog=_EPILOG,
        # An abbreviation of one of these flags could be one of Beam's flags.
        allow_abbrev=False,
    )
    flags.add_flags(parser, "features", FeatureOptions)
    found, beam_args = parser.parse_known_args(argv)
    try:
        options = flags.from_flags(FeatureOptions, found)
    except ValueError as error:
        raise errors.UserError(str(error)) from None
    # The last of two flags counts, so the user's own number wins.
    beam_args = ["--direct_num_workers=1", *beam_args]
    names = [f"--{field.name}" for field in dataclasses.fields(FeatureOptions)]
    launch.launch(options.output, beam_args, names, lambda: prepared_features(options), run)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit code, see `launch.exit_code`."""
    return launch.exit_code(extract, sys.argv[1:] if argv is None else argv)


if __name__ == "__main__":
    code = main()
    # Skips the garbage collection at exit, which would take half a second.
    gc.freeze()
    sys.exit(code)
