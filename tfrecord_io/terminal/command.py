"""One class for all commands: its flags, what it does, and the exit code of each error."""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Callable, Mapping, Sequence

from tfrecord_io.terminal import flags
from tfrecord_io.terminal.errors import MessageError
from tfrecord_io.terminal.printing import until_closed


@dataclasses.dataclass(frozen=True, kw_only=True)
class Command:
    """A command; calling it parses its arguments, runs it and returns its exit code.

    Attributes:
        name: as `scan-tfrecords` has it.
        purpose: what it does, in a sentence for --help.
        add_arguments: adds its flags to a parser.
        run: does the work with the flags, and returns the exit code; None is 0.
        usage: how to call it, after its name.
        epilog: the last paragraph of --help.
        codes: exit codes of errors, by their class, that are not `MessageError.exit_code`.
    """

    name: str
    purpose: str
    add_arguments: Callable[[argparse.ArgumentParser], object]
    run: Callable[[argparse.Namespace], int | None]
    usage: str = "[flags]"
    epilog: str | None = None
    codes: Mapping[type[Exception], int] = dataclasses.field(default_factory=dict)

    def __call__(self, argv: Sequence[str] | None = None) -> int:
        """Runs the command; `argv` has no name of a program, and is by default the process's.

        Returns:
            that of `run`; after an error 2 for wrong usage and unsuitable input, else 1.
        """
        program = flags.command(self.name)
        parser = flags.Parser(
            prog=program,
            usage=f"{program} {self.usage}",
            description=self.purpose,
            epilog=self.epilog,
        )
        self.add_arguments(parser)
        try:
            arguments = parser.parse_args(argv)
            with until_closed():
                return self.run(arguments) or 0
            return 1  # the reader of the output, such as `head`, closed it early
        except (MessageError, OSError) as error:
            own = (code for kind, code in self.codes.items() if isinstance(error, kind))
            code = next(own, error.exit_code if isinstance(error, MessageError) else 1)
            # A run that was asked to stop ends as a process that the signal ended.
            print(f"{'error: ' * (code < 128)}{error}", file=sys.stderr)
            return code
