"""`python -m tfrecord_io COMMAND DIRECTORY`: inspects and checks a finished dataset."""

from __future__ import annotations

import sys

from tfrecord_io import labels_from
from tfrecord_io.auditing import audit, verify
from tfrecord_io.format import manifest
from tfrecord_io.terminal import flags, redaction
from tfrecord_io.terminal.address import local_path
from tfrecord_io.terminal.errors import UserError
from tfrecord_io.terminal.printing import refuse, until_closed

_COMMANDS = {
    "verify": (verify, "recount and re-hash everything"),
    "labels_from": (labels_from, "write a table of labels from COCO, VOC or YOLO"),
    "audit": (audit, "look for leaks, copies, contradictions and shortcuts"),
}


@redaction.redacted_output()
def main(argv: list[str] | None = None) -> int:
    """Runs a command and returns its exit code.

    Args:
        argv: the command line without the program's name; by default that of this process.

    Returns:
        0 if nothing is wrong, 1 for findings or an unusable dataset, 2 for wrong usage.
    """
    program = flags.command("").strip()
    parser = flags.Parser(prog=program, description="Inspects and checks a finished dataset.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, (module, purpose) in _COMMANDS.items():
        module.add_arguments(commands.add_parser(name, help=purpose, description=purpose))
    args = parser.parse_args(argv)
    try:
        for given in filter(None, vars(args).values()):
            local_path(str(given))
        with until_closed():
            return _COMMANDS[args.command][0].run(args)
        return 1  # the reader of the output, such as `head`, closed it early
    except UserError as error:
        return refuse(f"{args.command}: {error}")
    except (manifest.ManifestError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
