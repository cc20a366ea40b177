"""Writes the forms of a trained network anew: python train/export.py --run RUN.

For those who installed a package for another form later, or a new version. Exit codes: 0 written,
1 a form does not give the network's answers, 2 wrong usage.
"""

from __future__ import annotations

import argparse
import sys

from tfrecord_io.terminal.address import Address
from tfrecord_io.terminal.printing import listed
from train.machine import console
from train.powers import POWERS
from train.results.classifier import load_classifier, single_runs


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the flags of the command."""
    run = "finished run or cross-validation, a folder or URL"
    parser.add_argument("--run", required=True, type=Address, metavar="RUN", help=run)


def export(arguments: argparse.Namespace) -> None:
    """Writes all forms beside model.keras, which stays as it is; each is loaded and compared."""
    with POWERS.working_folder(arguments.run) as folder:
        for run in single_runs([folder.path]):
            classifier = load_classifier(run)
            from train.training.export import write_other_forms  # with Keras, which takes seconds

            directory = classifier.folder
            write_other_forms(classifier.model, directory)
            for write_form in POWERS.forms:
                if missing := write_form(directory):
                    print(f"note: {missing}")
            names = sorted(path.name for path in directory.glob("*model*"))
            place = str(directory).removeprefix(str(folder.path))
            print(f"{folder.address}{place}: {listed(names)}")
        folder.save()


main = console.TrainerCommand(
    name="export",
    purpose="Writes the forms of a trained network anew, from its export/model.keras.",
    add_arguments=add_arguments,
    run=export,
)

if __name__ == "__main__":
    sys.exit(main())
