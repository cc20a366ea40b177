"""`python -m tfrecord_io COMMAND DIRECTORY`: inspects and checks a finished dataset."""

from __future__ import annotations

import argparse
import sys

from tfrecord_io import labels_from
from tfrecord_io.auditing import audit, diff, find, verify
from tfrecord_io.terminal import flags, redaction
from tfrecord_io.terminal.address import Address
from tfrecord_io.terminal.errors import ToldError, UserError
from tfrecord_io.terminal.printing import refuse, until_closed

_COMMANDS = {
    "verify": (verify, "recount and re-hash everything"),
    "labels_from": (labels_from, "write a table of labels from COCO, VOC or YOLO"),
    "audit": (audit, "look for leaks, copies, contradictions and shortcuts"),
    "diff": (diff, "compare the images and options of two datasets"),
    "find": (find, "find where a patient or a file still is"),
}

# Commands whose exit codes are those of diff and grep: 1 is an answer, so every error is 2.
_ASKING = ("diff", "find")


@redaction.redacted_output()
def main(argv: list[str] | None = None) -> int:
    """Runs a command and returns its exit code.

    Args:
        argv: the command line without the program's name; by default that of this process.

    Returns:
        0 if nothing is wrong, 1 for findings or an unusable dataset, 2 for wrong usage. `diff`
        returns 0 for equal datasets and 1 for different ones, `find` 0 for places and 1 for none,
        and both 2 for any error.
    """
    program = flags.command("").strip()
    parser = flags.Parser(prog=program, description="Inspects and checks a finished dataset.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, (module, purpose) in _COMMANDS.items():
        module.add_arguments(commands.add_parser(name, help=purpose, description=purpose))
    args, failed = argparse.Namespace(), 2
    try:
        _, unknown = parser.parse_known_args(argv, args)
        if args.command == "find" and not any(word.startswith("-") for word in unknown):
            # argparse does not take folders on both sides of a flag.
            args.folders += map(Address, unknown)
        elif unknown:
            commands.choices[args.command].refuse_unknown(unknown)
        failed = 2 if args.command in _ASKING else 1
        with until_closed():
            return _COMMANDS[args.command][0].run(args)
        return failed  # the reader of the output, such as `head`, closed it early
    except UserError as error:
        return refuse(f"{args.command}: {error}")
    except (ToldError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return failed


if __name__ == "__main__":
    sys.exit(main())
