"""`scan-tfrecords COMMAND ...`: every command of the project under one name.

A command is imported when it is called, so that none pays for another's libraries: the build for
TensorFlow, or the trainer for Beam. The scripts in pipelines/ and train/ are the same commands.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence

#: By command: the module whose `main` it calls, and what it does. `tfrecord_io` holds several
#: commands, and is told which.
COMMANDS = {
    "build": ("pipelines.build_tfrecords", "make a dataset of an image collection"),
    "verify": ("tfrecord_io.__main__", "recount and re-hash a dataset"),
    "show": ("tfrecord_io.__main__", "write a labelled contact sheet"),
    "audit": ("tfrecord_io.__main__", "look for leaks, copies, contradictions and shortcuts"),
    "index": ("tfrecord_io.__main__", "write index files for NVIDIA DALI"),
    "train": ("train.run", "train a network on a dataset"),
    "evaluate": ("train.evaluate", "measure a trained network on another dataset"),
    "predict": ("train.predict", "give the class probabilities of image files"),
    "benchmark": ("train.benchmark", "measure images a second by number of replicas"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command.

    Args:
        argv: the command's name and its own arguments; by default the process's.

    Returns:
        The command's exit code; 0 after the list of commands, 2 for a command that does not exist.
    """
    name, *arguments = list(sys.argv[1:] if argv is None else argv) or ["--help"]
    listed = "\n".join(f"  {command:<10} {purpose}" for command, (_, purpose) in COMMANDS.items())
    usage = f"usage: scan-tfrecords COMMAND ...\n\n{listed}\n\nEach has its own --help."
    if name in ("-h", "--help"):
        print(usage)
        return 0
    if name not in COMMANDS:
        print(f"error: expected a command, received {name!r}\n\n{usage}", file=sys.stderr)
        return 2
    module, _ = COMMANDS[name]
    if module == "tfrecord_io.__main__":
        arguments = [name, *arguments]
    return importlib.import_module(module).main(arguments)


if __name__ == "__main__":
    sys.exit(main())
