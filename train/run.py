"""Trains a network on a finished dataset: python train/run.py --data OUT --workdir RUN.

Called again with the same flags it goes on where it stopped. Exit codes: 0 the run is complete,
1 it failed, 2 wrong usage, 143 or 130 stopped by SIGTERM or Ctrl-C with the state saved.
"""

from __future__ import annotations

import argparse
import re
import sys

from tfrecord_io.format.manifest import ManifestError
from tfrecord_io.terminal.address import Address
from tfrecord_io.terminal.errors import ToldError
from train.machine import console
from train.machine.errors import TrainingError
from train.training import config


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the flags of the command."""
    first = config.add_arguments(parser)
    run = "folder or URL of this run"
    first.add_argument("--workdir", required=True, type=Address, metavar="RUN", help=run)
    again = "replace the run in --workdir"
    parser.add_argument("--overwrite", action="store_true", help=again)
    first_look = "show shapes, speed and augmented images, and write nothing to --workdir"
    parser.add_argument("--preview", action="store_true", help=first_look)
    parser.add_argument("--config", metavar="FILE", help="repeat the run of a RUN/config.json")


def train(arguments: argparse.Namespace) -> None:
    """Trains, or looks at what a training would be."""
    workdir, chosen = arguments.workdir, config.from_arguments(arguments)
    with console.hide_native_noise():
        from train.training import preview, run_setup, trainer
    try:
        if arguments.preview:
            preview.preview(run_setup.make_run(chosen, workdir))
            return
        trainer.train_and_evaluate(chosen, workdir, overwrite=arguments.overwrite)
    except (ToldError, ManifestError):
        raise
    except OSError as error:
        how = "fix that and run the same command again to continue"
        raise TrainingError(f"the run in {workdir} cannot go on: {error}; {how}") from error
    except Exception as error:
        # TensorFlow raises an error of its own, with the text of that which its input raised.
        told = re.search(r"\b(?:StoreError|ChangedError|ManifestError): (.+)", str(error))
        if not told:
            raise
        raise TrainingError(told[1]) from error


main = console.TrainerCommand(
    name="train",
    purpose="Trains a network on a finished dataset; goes on where it stopped.",
    usage="--data OUT --workdir RUN [flags]",
    epilog="All results are in --workdir: report.html, metrics.json, checkpoint, export.",
    add_arguments=add_arguments,
    run=train,
)

if __name__ == "__main__":
    sys.exit(main())
