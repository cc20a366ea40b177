"""Options of a command: each is declared once, as a field of a frozen dataclass.

The field has its default, help text and check, and its name is that of the flag:

>>> @dataclasses.dataclass(frozen=True, kw_only=True)
... class Options:
...     epochs: int = flag(3, "passes over the data", least=1)
...     __post_init__ = check
>>> parser = argparse.ArgumentParser()
>>> _ = add_flags(parser, "training", Options)
>>> from_flags(Options, parser.parse_args(["--epochs", "5"]))
Options(epochs=5)
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
import difflib
import functools
import math
import operator
import shutil
import sys
import types
import typing
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from tfrecord_io.terminal.address import Address, local_path
from tfrecord_io.terminal.errors import UserError

_Options = TypeVar("_Options")

# The script of each command in a clone; the others are commands of `tfrecord_io`.
_SCRIPTS = {
    "build": "pipelines/build_tfrecords.py",
    "train": "train/run.py",
    **{name: f"train/{name}.py" for name in ("evaluate", "predict", "export", "benchmark")},
    "compare": "train/extras/compare.py",
}

# Of each type of value: its name in --help, and what a text must be to become one.
_TYPES: dict[type, tuple[str, str | None]] = {
    int: ("N", "a whole number"),
    float: ("X", "a number"),
    str: ("VALUE", None),
    Path: ("PATH", None),
}


def flag(default: Any, help_text: str, **rules: Any) -> Any:
    """Declares a field of a dataclass and its flag.

    Args:
        default: of the field; --help shows it, unless it is None, False or empty, or the text says
            "(default: ...)" itself.
        help_text: the text in --help.
        **rules: `parse` turns the flag's text into the value, or raises a ValueError; by default
            the field's type does, and a flag of a bool takes no text. `expected` is what a text
            must be, for the message; by default the error of `parse` says it. `choices` are the
            values allowed, besides None. `least`, alone or with `most`, `above` and `below` are
            limits of numbers. `metavar` is the name of the value in --help. `can_be_negated` says
            that `--no-NAME` turns a bool off, `alias` is another name of the flag, `adds_up` that
            it can be given several times, for one list, `may_be_empty` that an empty text is a
            value. Others are for the caller.
    """
    return dataclasses.field(default=default, metadata={"help": help_text, **rules})


class _Store(argparse.Action):
    """Stores a value; of a flag without one, whether it does not begin with `--no-`.

    A flag that is given again adds to its list, or must say the same again.
    """

    def __init__(
        self, *args: Any, adds_up: bool = False, may_be_empty: bool = False, **settings: Any
    ) -> None:
        super().__init__(*args, **settings)
        self._adds_up, self._may_be_empty = adds_up, may_be_empty

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: Any = None) -> None:
        if self.nargs == 0:
            values = not option_string.startswith("--no-")
        elif not self._may_be_empty and "" in (values if isinstance(values, list) else [values]):
            # As of a variable of the shell that is not set: it would name the current folder.
            parser.error(f"{option_string or self.dest} has no value; give one, or leave it out")
        given = vars(parser).setdefault("given", {})
        before = given.get(self.dest, values) if option_string else values
        if before is not values and before != values:  # NaN differs from itself
            if isinstance(values, list):
                values = [*before, *values]
            elif self._adds_up:
                values = f"{before},{values}"
            else:
                told = f"{option_string} is given twice, as {before} and {values}; give it once"
                parser.error(told)
        given[self.dest] = values
        setattr(namespace, self.dest, values)


class _HelpAll(argparse.Action):
    """Prints the help with the flags that `add_flags` hides, and ends the command."""

    def __call__(self, parser: Any, *_: Any, **__: Any) -> None:
        for action, text in parser.hidden:
            action.help = text
        parser.print_help()
        parser.exit()


class Parser(argparse.ArgumentParser):
    """A parser whose errors are one line, with the flag that was probably meant.

    Attributes:
        hints: what to do instead, for flags that this command does not have.
    """

    hints: Mapping[str, str] = types.MappingProxyType({})

    def __init__(self, *args: Any, **settings: Any) -> None:
        # An abbreviation would change its meaning with the next flag that begins so.
        super().__init__(*args, allow_abbrev=False, **settings)
        self.register("action", None, _Store)
        self.register("action", "store", _Store)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parses a command line; returns the flags that are known, and the others."""
        self._words = sys.argv[1:] if args is None else list(args)
        self.given: dict[str, Any] = {}
        return super().parse_known_args(args, namespace)

    def error(self, message: str) -> NoReturn:
        """Prints the error and exits with 2."""
        if "required" in message:  # perhaps what is missing was misspelled
            known = self._option_string_actions
            names = [word.partition("=")[0] for word in self._words if word.startswith("--")]
            for name in [name for name in names if name not in known][:1]:
                message += f"; {name} is unknown{meant(name, known)}"
        hint = "" if message.endswith("?") else f"; see {self.prog} --help"
        self.exit(2, f"error: {message}{hint}\n")

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parses a command line; every flag must be known, and may stand among the folders."""
        found, unknown = self.parse_known_intermixed_args(args, namespace)
        if unknown:
            name = unknown[0].partition("=")[0]
            hint = f": {self.hints[name]}" if name in self.hints else ""
            self.error(f"unknown argument {name}{hint or meant(name, self._option_string_actions)}")
        return found


def meant(name: str, known: Iterable[str]) -> str:
    """Returns `; did you mean --input?` for a misspelled flag; empty if none is similar."""
    close = difflib.get_close_matches(name, list(known), 1, 0.75)
    return f"; did you mean {close[0]}?" if close else ""


def command(name: str) -> str:
    """Returns how this user calls a command such as `train`: `python train/run.py`."""
    program = Path(sys.argv[0]).name
    if program == "scan-tfrecords":
        # Of an environment that is not active, the program has a path.
        return f"{program if shutil.which(program) else sys.argv[0]} {name}"
    if program == "scan_tfrecords.py":
        return f"python scan_tfrecords.py {name}"
    return f"python {_SCRIPTS.get(name, f'-m tfrecord_io {name}')}"


def add_flags(
    parser: argparse.ArgumentParser,
    heading: str,
    *groups: type,
    only: Sequence[str] | None = None,
    without: Collection[str] = (),
    is_hidden: bool = False,
) -> Any:
    """Adds the flags of dataclasses to a parser, under a heading in --help, which it returns.

    Flags that are not given are absent from what the parser returns. `only` names the fields to
    add, in their order, or `without` those to leave out; `is_hidden` shows them in --help_all only.
    """
    section = parser.add_argument_group(heading)
    hidden = vars(parser).setdefault("hidden", [])
    if is_hidden and not hidden:
        parser.add_argument("--help_all", action=_HelpAll, nargs=0, help="show every flag and exit")
    fields = {field.name: (field, kind) for each in groups for field, kind in fields_of(each)}
    chosen = fields if only is None else only
    for field, kind in [fields[name] for name in chosen if name in fields]:
        if field.name in without:
            continue
        # argparse reads a single % as a placeholder.
        text = (field.metadata["help"] + _shown_default(field)).replace("%", "%%")
        settings: dict[str, Any] = {"default": argparse.SUPPRESS}
        settings["help"] = argparse.SUPPRESS if is_hidden else text
        rules = {name: field.metadata.get(name, False) for name in ("adds_up", "may_be_empty")}
        settings["action"] = functools.partial(_Store, **rules)
        names = [f"--{name}" for name in (field.metadata.get("alias"), field.name) if name]
        if kind is bool:
            settings["nargs"] = 0
        else:
            settings["metavar"] = field.metadata.get("metavar") or _metavar(field, kind)
        if field.metadata.get("can_be_negated"):
            names.append(f"--no-{field.name}")
        action = section.add_argument(*names, dest=field.name, **settings)
        if is_hidden:
            hidden.append((action, text))
        if kind is bool and len(names) == 1:  # from Python, `overwrite=False` is given so
            settings["help"] = argparse.SUPPRESS
            section.add_argument(f"--no-{field.name}", dest=field.name, **settings)
    return section


def add_dataset(parser: argparse.ArgumentParser) -> None:
    """Adds the folder of a dataset, alone or, as elsewhere, after `--data`; see `dataset_of`."""
    text = "the dataset, a folder or a URL"
    parser.add_argument("directory", nargs="?", type=Address, help=text)
    parser.add_argument("--data", type=Address, metavar="OUT", help="the same")


def dataset_of(found: argparse.Namespace) -> Address:
    """Returns the dataset that `add_dataset` found; raises UserError if it is not one."""
    given = [each for each in (found.directory, found.data) if each is not None]
    if len(given) != 1:
        raise UserError(f"expected one dataset, a folder or a URL; received {len(given)}")
    return given[0]


def given(group: type, found: argparse.Namespace) -> dict[str, Any]:
    """Returns the values of a dataclass's flags that a parser found, by field.

    Raises:
        UserError: if a text is not a value of its flag.
    """
    return {
        field.name: _parsed(field, kind, getattr(found, field.name))
        for field, kind in fields_of(group)
        if hasattr(found, field.name)
    }


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

    A text in a field of the type `Address` becomes one.

    A dataclass calls it in `__post_init__`, so that flags and values from elsewhere are checked
    alike.

    Raises:
        ValueError: naming the flag, the value and what was expected.
    """
    for field, kind in fields_of(type(options)):
        value = getattr(options, field.name)
        if kind is Address and value is not None:
            object.__setattr__(options, field.name, Address(value))
        if value is not None and (expected := _broken_rule(value, field.metadata)):
            name = field.metadata.get("alias", field.name)
            raise ValueError(f"--{name} must be {expected}; received {value!r}")


def _broken_rule(value: Any, rules: Mapping[str, Any]) -> str | None:
    """Returns what a value should be, if it is not."""
    choices, least, most = (rules.get(name) for name in ("choices", "least", "most"))
    if choices is not None and value not in choices:
        return " or ".join([", ".join(map(str, choices[:-1])), str(choices[-1])])
    if least is not None and not least <= value <= (math.inf if most is None else most):
        return f"at least {least}" if most is None else f"in {least}..{most}"
    for word, is_kept in (("above", operator.gt), ("below", operator.lt)):
        if word in rules and not is_kept(value, rules[word]):
            return f"{word} {rules[word]}"
    return None


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


def _shown_default(field: dataclasses.Field[Any]) -> str:
    is_plain = field.default is None or field.default is False or field.default in ("", ())
    is_told = "(default:" in field.metadata["help"]
    return "" if is_plain or is_told else f" (default: {field.default})"


def _metavar(field: dataclasses.Field[Any], kind: Any) -> str:
    choices = field.metadata.get("choices")
    # The usage would hide the other flags behind the names of many choices.
    if choices is not None and len(choices) <= 8:
        return f"{{{','.join(map(str, choices))}}}"
    return "NAME" if choices else _TYPES.get(kind, _TYPES[str])[0]


def _parsed(field: dataclasses.Field[Any], kind: Any, text: Any) -> Any:
    parse: Any = field.metadata.get("parse") or (local_path if kind is Path else kind)
    try:
        return parse(text)
    except ValueError as error:
        expected = field.metadata.get("expected") or _TYPES.get(parse, ("", None))[1]
        why = f"expected {expected}, received {text!r}" if expected else error
        name = field.metadata.get("alias", field.name)
        raise UserError(f"--{name}: {why}") from None
