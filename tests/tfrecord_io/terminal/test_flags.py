"""Options that are declared once, with their flags, defaults and checks; and commands."""

import dataclasses
import functools
import os
import re
import sys
from pathlib import Path

import pytest

from tfrecord_io.terminal.errors import MessageError, StoreError, UserError
from tfrecord_io.terminal.flags import (
    Command,
    Parser,
    add_flags,
    check,
    flag,
    from_flags,
    given,
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    data: Path | None = flag(None, "folder of 100 % of the data")
    names: tuple[str, ...] = flag(("a", "b"), "names", parse=lambda text: tuple(text.split("+")))
    optimizer: str = flag("adam", "update rule", choices=("sgd", "adam", "adamw"))
    rate: float = flag(0.5, "step size (default: a half)", alias="lr", least=0)
    share: float = flag(0.1, "share of the images", above=0, below=1)
    augment: bool = flag(True, "change the images")
    overwrite: bool = flag(False, "replace what is there")
    resolved: int = 0

    __post_init__ = check


def parser():
    made = Parser(prog="tool")
    add_flags(made, "training", Options)
    return made


def read(*words):
    return from_flags(Options, parser().parse_args(words))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--optimiser=adam"], "--optimiser; did you mean --optimizer?"),
        (["--optim=adam"], "--optim; did you mean --optimizer?"),
        (["--colour"], "--colour"),
        (["--rate"], "--rate"),
        (["--rnu=x"], "--rnu; did you mean --run?"),
        ([], "--run"),
    ],
)
def test_an_error_is_one_line_that_names_the_flag_that_was_meant(words, message, capsys):
    made = parser()
    made.add_argument("--run", required=not words or "--run" in message)
    with pytest.raises(SystemExit) as raised:
        made.parse_args(words)
    assert raised.value.code == 2
    said = capsys.readouterr().err
    assert re.fullmatch(f"error: .*{re.escape(message)}.*; see tool --help\n", said)


def test_flags_become_values_of_their_types_and_others_keep_their_defaults():
    assert read() == Options()
    words = ["--data=x", "--names=c+d", "--lr", "2", "--rate=2", "--no-augment", "--overwrite"]
    assert read(*words) == Options(
        data=Path("x"), names=("c", "d"), rate=2.0, augment=False, overwrite=True
    )
    assert given(Options, parser().parse_args(["--optimizer=sgd"])) == {"optimizer": "sgd"}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--rate=fast"], "--lr: expected a number, received 'fast'"),
        (["--rate=-1"], "--lr must be at least 0; received -1.0"),
        (["--rate=nan"], "--lr must be at least 0; received nan"),
        (["--share=1"], "--share must be below 1; received 1.0"),
        (["--optimizer=lion"], "--optimizer must be one of sgd, adam, adamw; received 'lion'"),
        (["--names="], "--names has no value; give one, or leave it out"),
    ],
)
def test_a_wrong_value_is_one_line_with_the_flag_and_what_was_expected(words, message):
    with pytest.raises(UserError, match=f"^{re.escape(message)}$"):
        read(*words)


# ---- commands


def ended(run, **settings):
    nothing = {"name": "try", "purpose": "", "add_arguments": lambda parser: None}
    return Command(run=run, **nothing, **settings)([])


def failing(error):
    def run(arguments):
        raise error

    return run


@pytest.mark.parametrize(
    ("error", "codes", "code"),
    [
        (UserError("wrong"), {}, 2),
        (StoreError("wrong"), {}, 1),
        (OSError("wrong"), {}, 1),
        (StoreError("wrong"), {MessageError: 3}, 3),
    ],
)
def test_an_error_for_users_is_a_line_and_an_exit_code(error, codes, code, capsys):
    assert ended(failing(error), codes=codes) == code
    assert capsys.readouterr() == ("", "error: wrong\n")
    with pytest.raises(KeyError):  # another error keeps its traceback
        ended(failing(KeyError("a fault of the program")))


def test_nobody_who_reads_the_output_is_no_traceback(monkeypatch, capfd):
    read, write = os.pipe()
    os.close(read)
    with open(write, "w") as closed:  # noqa: PTH123 - not a path
        monkeypatch.setattr(sys, "stdout", closed)
        assert ended(functools.partial(print, "x" * 100_000)) == 1
    assert capfd.readouterr() == ("", "")
