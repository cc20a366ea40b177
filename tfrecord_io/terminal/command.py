"""A command: its flags, what it does, the exit code of each error, and the packages it needs."""

from __future__ import annotations

import argparse
import dataclasses
import importlib.util
import sys
from collections.abc import Callable, Mapping, Sequence

from tfrecord_io.terminal import flags
from tfrecord_io.terminal.errors import MessageError
from tfrecord_io.terminal.printing import until_closed

#: By command: modules that a light install lacks.
_MODULES = {
    "build": ("apache_beam", "deflate", "jinja2", "PIL", "psutil", "tqdm"),
    "audit": ("PIL",),
    "train": ("jinja2", "keras", "matplotlib", "PIL", "scipy", "sklearn", "tqdm"),
}
#: The extra that has the packages of a command which has none of its own.
_EXTRAS = {"audit": "build"}


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


def require(command: str) -> None:
    """Ends the process with 2 and a line, if packages of `build`, `audit` or `train` are missing.

    A package calls it before its modules import them, so that no traceback says it.
    """
    if missing := [name for name in _MODULES[command] if importlib.util.find_spec(name) is None]:
        extra = _EXTRAS.get(command, command)
        print(
            f"error: {', '.join(missing)} {'is' if len(missing) == 1 else 'are'} not installed; "
            f"run pip install 'scan-tfrecords[{extra}]'",
            file=sys.stderr,
        )
        sys.exit(2)
