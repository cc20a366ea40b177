"""Options that are declared once, with their flags, defaults and checks."""

import argparse
import dataclasses
import math
import re
from pathlib import Path

import pytest

from tfrecord_io.terminal.errors import UserError
from tfrecord_io.terminal.flags import Parser, add_flags, check, command, flag, from_flags, given
from tfrecord_io.terminal.flags import names as names_in


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    data: Path | None = flag(None, "folder of 100 % of the data")
    names: tuple[str, ...] = flag(("a", "b"), "names", parse=lambda text: tuple(text.split("+")))
    tables: tuple[str, ...] = flag((), "tables", parse=names_in, adds_up=True)
    optimizer: str = flag("adam", "update rule", choices=("sgd", "adam", "adamw"))
    rate: float = flag(0.5, "step size (default: a half)", least=0)
    share: float = flag(0.1, "share of the images", least=0, most=1)
    augment: bool = flag(True, "change the images", can_be_negated=True)
    overwrite: bool = flag(False, "replace what is there")
    resolved: int = 0

    def __post_init__(self):
        check(self)


def parser():
    made = argparse.ArgumentParser()
    add_flags(made, "training", Options)
    return made


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--optimiser=adam"], "unknown argument --optimiser; did you mean --optimizer?"),
        (["--colour"], "unknown argument --colour; see tool --help"),
        (["--rate"], "argument --rate: expected one argument; see tool --help"),
        (["--augm"], "--run; --augm is unknown; did you mean --augment?"),
        (["--optim=adam"], "unknown argument --optim; did you mean --optimizer?"),
        (["--names="], "--names has no value; give one, or leave it out; see tool --help"),
        (["--run", ""], "--run has no value; give one, or leave it out; see tool --help"),
        (["--size=3"], "unknown argument --size: the data has it; see tool --help"),
        (
            ["--rate=1", "--rate", "2"],
            "--rate is given twice, as 1 and 2; give it once; see tool --help",
        ),
        *(
            (
                [f"--{name}", f"--no-{name}"],
                f"--no-{name} is given twice, as True and False; give it once; see tool --help",
            )
            for name in ("augment", "overwrite")
        ),
        (["--no-augment", "--rnu=x"], "--run; --rnu is unknown; did you mean --run?"),
    ],
)
def test_an_error_is_one_line_that_names_the_flag_that_was_meant(words, message, capsys):
    made = Parser(prog="tool")
    made.hints = {"--size": "the data has it"}
    add_flags(made, "training", Options)
    made.add_argument("--run", required="--run" in message)
    with pytest.raises(SystemExit) as raised:
        made.parse_args(words)
    assert raised.value.code == 2
    assert re.fullmatch(f"error: .*{re.escape(message)}\n", capsys.readouterr().err)


@pytest.mark.parametrize(
    ("program", "train", "verify"),
    [
        ("scan-tfrecords", "scan-tfrecords train", "scan-tfrecords verify"),
        ("no/bin/scan-tfrecords", "no/bin/scan-tfrecords train", "no/bin/scan-tfrecords verify"),
        ("scan_tfrecords.py", "python scan_tfrecords.py train", "python scan_tfrecords.py verify"),
        ("train/run.py", "python train/run.py", "python -m tfrecord_io verify"),
    ],
)
def test_advice_names_commands_as_the_user_calls_them(program, train, verify, monkeypatch):
    monkeypatch.setattr("sys.argv", [program])
    monkeypatch.setenv("PATH", "/nowhere")
    assert (command("train"), command("verify")) == (train, verify)


def read(*words):
    return from_flags(Options, parser().parse_args(words))


def test_flags_become_values_of_their_types_and_others_keep_their_defaults():
    assert read() == Options()
    words = ["--data=x", "--names=c+d", "--rate", "2", "--no-augment", "--overwrite"]
    assert read(*words) == Options(
        data=Path("x"), names=("c", "d"), rate=2.0, augment=False, overwrite=True
    )
    found = parser().parse_args(["--optimizer=sgd"])
    assert given(Options, found) == {"optimizer": "sgd"}


def test_a_flag_that_is_given_again_adds_to_its_list_or_says_the_same():
    made = Parser(prog="tool")
    add_flags(made, "training", Options)
    made.add_argument("--run", nargs="+")
    words = "--tables=a --rate=2 --run x --augment --tables b,c --rate 2 --augment --run y z"
    for _ in range(2):
        found = made.parse_args(words.split())
        assert (found.run, from_flags(Options, found)) == (
            ["x", "y", "z"],
            Options(tables=("a", "b", "c"), rate=2.0),
        )


def test_help_shows_each_text_with_its_default_once():
    text = " ".join(parser().format_help().split())
    assert "folder of 100 % of the data --names" in text
    assert "--optimizer {sgd,adam,adamw} update rule (default: adam)" in text
    assert "--rate X step size (default: a half) --share" in text
    assert "replace what is there" in text
    assert "resolved" not in text


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--rate=fast"], "--rate: expected a number, received 'fast'"),
        (["--rate=-1"], "--rate must be at least 0; received -1.0"),
        (["--rate=nan"], "--rate must be at least 0; received nan"),
        (["--share=1.5"], "--share must be in 0..1; received 1.5"),
        (["--optimizer=lion"], "--optimizer must be sgd, adam or adamw; received 'lion'"),
    ],
)
def test_a_wrong_value_is_one_line_with_the_flag_and_what_was_expected(words, message):
    with pytest.raises(UserError, match=f"^{re.escape(message)}$"):
        read(*words)


def test_values_from_elsewhere_are_checked_as_flags_are():
    with pytest.raises(ValueError, match="--rate must be at least 0"):
        Options(rate=math.nan)
