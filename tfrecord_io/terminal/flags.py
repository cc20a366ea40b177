"""Commands, and their options, each declared once as a field of a frozen dataclass for argparse.

>>> @dataclasses.dataclass(frozen=True, kw_only=True)
... class Options:
...     epochs: int = flag(3, "passes over the data", least=1)
...     __post_init__ = check
>>> parser = Parser()
>>> add_flags(parser, "training", Options)
>>> from_flags(Options, parser.parse_args(["--epochs", "5"]))
Options(epochs=5)
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
import difflib
import functools
import importlib.util
import operator
import re
import sys
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from tfrecord_io.terminal.address import Address, local_path
from tfrecord_io.terminal.errors import MessageError, UserError
from tfrecord_io.terminal.printing import until_closed

_Options = TypeVar("_Options")

# The script of each command in a clone; the others are commands of `tfrecord_io`.
_SCRIPTS = {
    "build": "pipelines/build_tfrecords.py",
    "train": "train/run.py",
    **{name: f"train/{name}.py" for name in ("evaluate", "predict", "benchmark")},
    "compare": "train/extras/compare.py",
}
_METAVARS: dict[Any, str] = {int: "N", float: "X", Path: "PATH"}
_EXPECTED: dict[Any, str] = {int: "a whole number", float: "a number"}
_LIMITS = {
    "least": ("at least", operator.ge),
    "most": ("at most", operator.le),
    "above": ("above", operator.gt),
    "below": ("below", operator.lt),
}


def flag(default: Any, help_text: str, **rules: Any) -> Any:
    """Declares a field of a dataclass that is also a flag of the same name.

    Args:
        default: of the field; --help adds it to the text, unless it is None, False or empty, or
            the text says "(default: ...)" itself.
        help_text: the text in --help.
        **rules: `parse` turns the flag's text into the value, or raises a ValueError; by default
            the field's type does. A bool gets the flags --NAME and --no-NAME. `expected` is what
            the text must be, for the message; by default the error of `parse` says it. `choices`
            are the values allowed, besides None; `least`, `most`, `above` and `below` are limits.
            `metavar` is the name of the value in --help, `alias` another name of the flag. Others
            are for the caller.
    """
    return dataclasses.field(default=default, metadata={"help": help_text, **rules})


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
        program = command(self.name)
        usage = f"{program} {self.usage}"
        parser = Parser(prog=program, usage=usage, description=self.purpose, epilog=self.epilog)
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


def require(extra: str, *modules: str) -> None:
    """Ends the process with 2 and a line, if one of the modules of an extra is missing.

    A package calls it before its modules import them, so that no traceback says it.
    """
    if missing := [name for name in modules if importlib.util.find_spec(name) is None]:
        advice = f"run pip install '.[{extra}]' in the clone of this project"
        print(f"error: {', '.join(missing)} not installed; {advice}", file=sys.stderr)
        sys.exit(2)


class Parser(argparse.ArgumentParser):
    """A parser whose errors are one line, with the flag that was probably meant."""

    def error(self, message: str) -> NoReturn:
        """Prints the error and exits with 2."""
        self.exit(2, f"error: {message}; see {self.prog} --help\n")

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parses a command line, of which every flag must be known."""
        words = sys.argv[1:] if args is None else list(args)
        # Before argparse, which would first report that the flag that was meant is missing.
        for name in (word.partition("=")[0] for word in words if word.startswith("--")):
            if name not in self._option_string_actions:
                self.error(f"unknown flag {name}{meant(name, self._option_string_actions)}")
        return super().parse_args(words, namespace)


def meant(name: str, known: Iterable[str]) -> str:
    """Returns `; did you mean --input?` for a misspelled flag; empty if none is similar."""
    close = difflib.get_close_matches(name, list(known), 1, 0.75)
    return f"; did you mean {close[0]}?" if close else ""


def command(name: str) -> str:
    """Returns how this user calls a command such as `train`: `python train/run.py`."""
    program = Path(sys.argv[0]).name
    if program == "scan-tfrecords":
        return f"scan-tfrecords {name}"
    if program == "scan_tfrecords.py":
        return f"python scan_tfrecords.py {name}"
    return f"python {_SCRIPTS.get(name, f'-m tfrecord_io {name}')}"


def add_flags(parser: argparse.ArgumentParser, heading: str, *groups: type) -> None:
    """Adds the flags of dataclasses to a parser, under a heading in --help.

    Flags that are not given are absent from what the parser returns.
    """
    section = parser.add_argument_group(heading)
    for field, kind in (pair for group in groups for pair in fields_of(group)):
        rules = field.metadata
        plain = field.default in (None, False, "", ()) or "(default:" in rules["help"]
        text = rules["help"] + ("" if plain else f" (default: {field.default})")
        settings: dict[str, Any] = {"dest": field.name, "default": argparse.SUPPRESS}
        settings["help"] = text.replace("%", "%%")  # argparse reads % as a placeholder
        if kind is bool:
            settings["action"] = argparse.BooleanOptionalAction
        else:
            choices = ",".join(map(str, rules.get("choices", ())))
            metavar = f"{{{choices}}}" if choices else _METAVARS.get(kind, "VALUE")
            settings["metavar"] = rules.get("metavar", metavar)
        names = filter(None, (rules.get("alias"), field.name))
        section.add_argument(*(f"--{name}" for name in names), **settings)


def add_dataset(parser: argparse.ArgumentParser) -> None:
    """Adds the folder of a dataset, `directory`, without the name of a flag."""
    parser.add_argument("directory", metavar="OUT", type=Address, help="a dataset: folder or URL")


def given(group: type, found: argparse.Namespace) -> dict[str, Any]:
    """Returns the values of a dataclass's flags that a parser found, by field.

    Raises:
        UserError: if a text is not a value of its flag.
    """
    values = {}
    for field, kind in fields_of(group):
        if not hasattr(found, field.name):
            continue
        text, rules = getattr(found, field.name), field.metadata
        parse = rules.get("parse") or (local_path if kind is Path else kind)
        try:
            if text == "":  # as of an unset shell variable
                raise UserError(f"--{field.name} has no value; give one, or leave it out")
            values[field.name] = parse(text)
        except ValueError as error:
            expected = rules.get("expected") or _EXPECTED.get(parse)
            why = f"expected {expected}, received {text!r}" if expected else error
            raise UserError(f"--{rules.get('alias', field.name)}: {why}") from None
    return values


def from_flags(group: type[_Options], found: argparse.Namespace) -> _Options:
    """Returns a dataclass with the values of the flags that were given; UserError if it cannot."""
    try:
        return group(**given(group, found))
    except ValueError as error:
        raise UserError(str(error)) from None


def names(text: str) -> tuple[str, ...]:
    """Returns the names in a list such as `A,B`; a name with a comma is in quotes, as in CSV.

    >>> names('"COVID-19, ARDS", NORMAL')
    ('COVID-19, ARDS', 'NORMAL')

    Raises:
        ValueError: if a name is empty, or a quote is not closed.
    """
    try:
        (cells,) = csv.reader([text], skipinitialspace=True, strict=True)
    except (csv.Error, ValueError):
        raise ValueError(f'expected A,B or "A, with a comma",B, received {text!r}') from None
    found = tuple(name.strip() for name in cells)
    if not all(found):
        raise ValueError(f"a name is empty, or a comma too many, in {text!r}")
    return found


def check(options: Any) -> None:
    """Checks the values of a dataclass against their `choices` and limits; NaN is in no range.

    A text in a field of the type `Address` becomes one. A dataclass calls it in `__post_init__`, so
    that flags and values from elsewhere are checked alike.

    Raises:
        ValueError: naming the flag, the value and what was expected.
    """
    for field, kind in fields_of(type(options)):
        value, rules = getattr(options, field.name), field.metadata
        if value is None:
            continue
        if kind is Address and value:
            object.__setattr__(options, field.name, Address(value))
        expected = [
            f"{words} {rules[limit]}"
            for limit, (words, is_kept) in _LIMITS.items()
            if limit in rules and not is_kept(value, rules[limit])
        ]
        if value not in (choices := rules.get("choices", (value,))):
            expected = [f"one of {', '.join(map(str, choices))}"]
        if expected:
            name = rules.get("alias", field.name)
            raise ValueError(f"--{name} must be {expected[0]}; received {value!r}")


@functools.cache
def fields_of(group: type) -> Sequence[tuple[dataclasses.Field[Any], Any]]:
    """Returns the fields that are flags, each with the type of its values besides None."""
    hints = typing.get_type_hints(group)
    fields = []
    for field in dataclasses.fields(group):
        hint = hints[field.name]
        if isinstance(hint, types.UnionType):
            (hint, *_) = (part for part in typing.get_args(hint) if part is not types.NoneType)
        if "help" in field.metadata:
            fields.append((field, str if typing.get_origin(hint) is typing.Literal else hint))
    return fields


def compiled(flag: str, pattern: str, wanted: str = "") -> re.Pattern[str]:
    """Returns the pattern of a flag, whose first group is what is `wanted`, if something is.

    Raises:
        ValueError: naming the flag, if it is not a pattern or has no group.
    """
    try:
        found = re.compile(pattern)
        if wanted and not found.groups:
            raise re.error(f"it needs a group in parentheses for the {wanted}")
    except re.error as error:
        raise ValueError(f"--{flag} {pattern!r} is not a valid pattern: {error}") from None
    return found


def found_in(path: str, pattern: re.Pattern[str]) -> str | None:
    """Returns the first group of a pattern in a file's name, or else in its path; None without one.

    >>> found_in("p1/scan-3.png", re.compile("(p[0-9])/")), found_in("17.png", re.compile("(x)"))
    ('p1', None)
    """
    match = pattern.search(path.rpartition("/")[2]) or pattern.search(path)
    return (match and match.group(1)) or None
