"""Trains a network on a finished dataset: python train/run.py --data OUT --workdir RUN.

Called again with the same flags it goes on where it stopped. Exit codes: 0 the run is complete,
1 it failed, 2 wrong usage, 143 or 130 stopped by SIGTERM or Ctrl-C with the state saved.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence

from tfrecord_io import flags, redaction
from tfrecord_io.errors import StoreError, UserError
from tfrecord_io.manifest import ManifestError
from train import config, console
from train.errors import ConfigError, MetricsError, StoppedError, TrainingError


@redaction.redacted_output()
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
    program = flags.command("train")
    parser = flags.Parser(
        prog=program,
        usage=f"{program} --data OUT --workdir RUN [flags]",
        description="Trains a network on a finished dataset; goes on where it stopped.",
        epilog="All results are in --workdir: report.html, metrics.json, checkpoint, export.",
    )
    first = config.add_arguments(parser)
    first.add_argument("--workdir", required=True, metavar="RUN", help="folder of this run")
    parser.add_argument("--config", metavar="FILE", help="repeat the run of a RUN/config.json")
    arguments = parser.parse_args(argv)
    workdir = arguments.workdir
    console.set_defaults()
    try:
        chosen = config.from_arguments(config.given_fields(arguments), arguments.config)
        console.check_backend(os.environ["KERAS_BACKEND"])
        config.check_data(chosen.input.data)
        with console.hide_native_noise():
            from train.training import trainer
        trainer.train_and_evaluate(chosen, workdir)
    except (ConfigError, ManifestError, UserError) as error:
        return _complain(error, 2)
    except StoppedError as error:
        return _complain(error, 128 + error.signal_number)
    except (TrainingError, MetricsError, StoreError) as error:
        return _complain(error, 1)
    except OSError as error:
        how = "its last checkpoint is whole; fix that and run the same command again to continue"
        return _complain(f"the run in {workdir} cannot go on: {error}; {how}", 1)
    except Exception as error:
        # TensorFlow raises an error of its own, with the text of that which its input raised.
        told = re.search(r"\b(?:StoreError|ChangedError|ManifestError): (.+)", str(error))
        if not told:
            raise
        return _complain(told[1], 1)
    return 0


def _complain(error: Exception | str, exit_code: int) -> int:
    print(error if exit_code > 2 else f"error: {error}", file=sys.stderr)
    return exit_code


if __name__ == "__main__":
    sys.exit(main())
