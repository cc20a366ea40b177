"""Trains a network on a finished dataset: python train/run.py --data OUT --workdir RUN.

Called again with the same flags it goes on where it stopped. Exit codes: 0 the run is complete,
1 it failed, 2 wrong usage, 143 or 130 stopped by SIGTERM or Ctrl-C with the state saved.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from train import config, console
from train.errors import ConfigError


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit code."""
    try:
        with console.clear_interrupts():
            return _run(argv)
    except KeyboardInterrupt:
        # Before or after the training steps, or a second Ctrl-C within one.
        print("stopped; run the same command again to continue", file=sys.stderr)
        return 130


def _run(argv: Sequence[str] | None) -> int:
    parser = argparse.ArgumentParser(
        prog="python train/run.py",
        description=__doc__.partition("\n")[0] if __doc__ else None,
        epilog="All results are in --workdir: report.html, metrics.json, checkpoint, export.",
    )
    parser.add_argument("--workdir", required=True, metavar="RUN", help="folder of this run")
    parser.add_argument("--config", metavar="FILE", help="repeat the run of a RUN/config.json")
    config.add_arguments(parser)
    arguments = parser.parse_args(argv)
    workdir = arguments.workdir
    console.set_defaults()
    try:
        given = config.given_fields(arguments)
        chosen = config.from_arguments(given, arguments.config)
        console.check_backend(os.environ["KERAS_BACKEND"])
        with console.hide_native_noise():
            from tfrecord_io import ManifestError
            from train.results import metrics
            from train.training import callbacks, checkpoint, export, trainer
    except ConfigError as error:
        return _complain(error, 2)
    try:
        trainer.train_and_evaluate(chosen, workdir, given)
    except (ConfigError, ManifestError) as error:
        return _complain(error, 2)
    except callbacks.StoppedError as error:
        return _complain(error, 128 + error.signal_number)
    except (
        callbacks.TrainingError,
        checkpoint.CheckpointError,
        export.ExportError,
        metrics.MetricsError,
    ) as error:
        return _complain(error, 1)
    except OSError as error:
        how = "its last checkpoint is whole; fix that and run the same command again to continue"
        return _complain(f"the run in {workdir} cannot go on: {error}; {how}", 1)
    return 0


def _complain(error: Exception | str, exit_code: int) -> int:
    print(f"{'stopped' if exit_code > 2 else 'error'}: {error}", file=sys.stderr)
    return exit_code


if __name__ == "__main__":
    sys.exit(main())
