"""Runs the frozen part of a network over a dataset, once, and stores what comes out of it.

    python pipelines/extract_features.py --data OUT --trunk trunk.keras --output FEATURES

The output is a dataset too, whose images are feature maps. `train/run.py` trains the layers above
the trunk on it. The job resumes, runs on the same engines and is verified like a build.
"""

from __future__ import annotations

import argparse
import gc
import sys
from collections.abc import Sequence
from pathlib import Path

from pipelines import errors
from pipelines.build_tfrecords import run
from pipelines.engine import launch
from pipelines.engine.feature_job import FeatureOptions, prepared_features
from pipelines.shards.features import DTYPES

_EPILOG = """\
All other flags are Beam's, as for build_tfrecords.py. On this machine one process writes all
shards, because Keras uses every core; --direct_num_workers=2 starts two.
"""


def extract(argv: Sequence[str]) -> None:
    """Plans the shards, writes them and finishes the dataset.

    Args:
        argv: the command line without the program's name.

    Raises:
        errors.UserError: if the usage or the input is wrong.
        errors.BuildError: if the extraction could not be finished.
    """
    parser = _parser()
    found, beam_args = parser.parse_known_args(argv)
    try:
        options = FeatureOptions(**vars(found))
    except ValueError as error:
        raise errors.UserError(str(error)) from None
    # The last of two flags counts, so the user's own number wins.
    beam_args = ["--direct_num_workers=1", *beam_args]
    flag_names = [f"--{name}" for name in vars(found)]
    launch.launch(options.output, beam_args, flag_names, lambda: prepared_features(options), run)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="extract_features.py",
        description=(__doc__ or "").partition("\n")[0],
        epilog=_EPILOG,
        # An abbreviation of one of these flags could be one of Beam's flags.
        allow_abbrev=False,
    )
    parser.add_argument("--data", required=True, metavar="OUT", help="finished dataset of images")
    parser.add_argument(
        "--trunk", required=True, type=Path, metavar="FILE", help="file that train/trunk.py wrote"
    )
    parser.add_argument(
        "--output", required=True, metavar="DIR", help="folder or URL of the feature maps"
    )
    parser.add_argument(
        "--dtype",
        default="float16",
        choices=DTYPES,
        help="type in which they are stored; float16 rounds to 11 bits (default: %(default)s)",
    )
    parser.add_argument(
        "--overwrite",
        action="store_true",
        help="replace a dataset in the output folder that another trunk or dataset made",
    )
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit code.

    Args:
        argv: the command line without the program's name; by default that of this process.

    Returns:
        0 if the features are there, 1 if the job failed, 2 for wrong usage, 130 after Ctrl-C.
    """
    return launch.exit_code(extract, sys.argv[1:] if argv is None else argv)


if __name__ == "__main__":
    code = main()
    # Skips the garbage collection at exit, which would take half a second.
    gc.freeze()
    sys.exit(code)
