"""`scan-tfrecords COMMAND ...`: every command of the project under one name.

A command's module is imported only when the command is called, so that the build does not import
TensorFlow and the trainer does not import Beam. The scripts in pipelines/ and train/ are the same
commands.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from collections.abc import Sequence
from pathlib import Path

#: By command: the module whose `main` it calls, and its purpose. `tfrecord_io` has several
#: commands, so it also gets the command's name.
COMMANDS = {
    "build": ("pipelines.build_tfrecords", "make a dataset from an image collection"),
    "verify": ("tfrecord_io.__main__", "recount and re-hash a dataset"),
    "labels_from": ("tfrecord_io.__main__", "write a table of labels from COCO, VOC or YOLO"),
    "audit": ("tfrecord_io.__main__", "look for leaks, copies, contradictions and shortcuts"),
    "diff": ("tfrecord_io.__main__", "compare the images and options of two datasets"),
    "train": ("train.run", "train a network on a dataset"),
    "evaluate": ("train.evaluate", "measure a trained network on another dataset"),
    "predict": ("train.predict", "predict image files"),
    "benchmark": ("train.benchmark", "measure images per second by number of replicas"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command.

    Args:
        argv: the command's name and its arguments; None for those of the process.

    Returns:
        the exit code of the command; 0 after the list of commands or the version, 2 for an unknown
        command.
    """
    _find_own_packages_first()
    name, *arguments = list(sys.argv[1:] if argv is None else argv) or ["--help"]
    listed = "\n".join(f"  {command:<11} {purpose}" for command, (_, purpose) in COMMANDS.items())
    hint = "Each has its own --help; --version prints the version."
    usage = f"usage: scan-tfrecords COMMAND ...\n\n{listed}\n\n{hint}"
    if name in ("-h", "--help"):
        print(usage)
        return 0
    if name == "--version":
        version = importlib.import_module("tfrecord_io.version").VERSION
        resizer = importlib.import_module("tfrecord_io.decoding.resize").resizer()
        print(f"scan-tfrecords {version}, resizes with {resizer}")
        return 0
    if name not in COMMANDS:
        print(f"error: expected a command, received {name!r}\n\n{usage}", file=sys.stderr)
        return 2
    module, _ = COMMANDS[name]
    if module == "tfrecord_io.__main__":
        arguments = [name, *arguments]
    try:
        main_of_module = importlib.import_module(module).main
    except KeyboardInterrupt:
        return 130
    return main_of_module(arguments)


def _find_own_packages_first() -> None:
    """Has this process and its workers pass over a user's own train.py or folder pipelines.

    Otherwise these are found in the working folder, or in another one on the path.
    """
    os.environ["PYTHONSAFEPATH"] = "1"  # else a worker looks into the working folder first
    root = str(Path(__file__).resolve().parent)
    packages = ("pipelines", "tfrecord_io", "train")
    found = [spec.origin for spec in map(importlib.util.find_spec, packages) if spec]
    if sys.path[0] != root and found == [f"{root}/{name}/__init__.py" for name in packages]:
        return
    sys.path.insert(0, root)
    others = os.environ.get("PYTHONPATH", "")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [root, others]))


if __name__ == "__main__":
    sys.exit(main())
