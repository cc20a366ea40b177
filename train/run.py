"""Trains a network on a finished dataset: python train/run.py --data OUT --workdir RUN.

Called again with the same flags it goes on where it stopped. Exit codes: 0 the run is complete,
1 it failed, 2 wrong usage, 128 and the number of the signal that stopped it, with the state saved.
"""

from __future__ import annotations

import argparse
import sys

from tfrecord_io.terminal.address import Address
from train.extras import bucket
from train.machine import console
from train.machine.errors import TrainingError
from train.training import config


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the flags of the command."""
    run = "folder or URL of this run"
    parser.add_argument("--workdir", required=True, type=Address, metavar="RUN", help=run)
    again = "replace the run in --workdir"
    parser.add_argument("--overwrite", action="store_true", help=again)
    parser.add_argument("--config", metavar="FILE", help="repeat the run of a RUN/config.json")
    config.add_arguments(parser)


def train(arguments: argparse.Namespace) -> None:
    """Trains, measures and exports one network, or those of a cross-validation."""
    workdir, chosen = arguments.workdir, config.from_arguments(arguments, bucket.open_run)
    with console.hide_native_noise():
        from train.training import folds, trainer
    try:
        with bucket.working_folder(workdir) as folder:
            is_divided = chosen.folds.is_cross_validation
            run = folds.cross_validate if is_divided else trainer.train_and_evaluate
            run(chosen, folder, overwrite=arguments.overwrite)
    except OSError as error:
        how = "fix that and run the same command again to continue"
        raise TrainingError(f"the run in {workdir} cannot go on: {error}; {how}") from error


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
