import functools
import os
import re
import sys
import time

import pytest

from tfrecord_io.terminal import printing, stages
from tfrecord_io.terminal.command import Command
from tfrecord_io.terminal.errors import StoreError, ToldError, UserError


def ended(error, **settings):
    def run(arguments):
        raise error

    command = Command(
        name="try", purpose="", add_arguments=lambda parser: None, run=run, **settings
    )
    return command([])


@pytest.mark.parametrize(
    ("error", "codes", "code"),
    [
        (UserError("wrong"), {}, 2),
        (StoreError("wrong"), {}, 1),
        (OSError("wrong"), {}, 1),
        (StoreError("wrong"), {ToldError: 3}, 3),
        (OSError("wrong"), {ToldError: 3}, 1),
    ],
)
def test_an_error_for_users_is_a_line_and_an_exit_code(error, codes, code, capsys):
    assert ended(error, codes=codes) == code
    assert capsys.readouterr() == ("", "error: wrong\n")


def test_a_silent_command_says_what_it_is_at_and_another_one_is_left_alone(monkeypatch, capfd):
    monkeypatch.setattr(stages, "SECONDS", 0.2)

    def run(arguments):
        with stages.stage("first"):
            for _ in range(8):
                time.sleep(0.05)
                print("a word")
        with stages.stage("second"), printing.hide_native_noise():
            time.sleep(0.5)

    command = Command(name="try", purpose="", add_arguments=lambda parser: None, run=run)
    assert command([]) == 0
    said = capfd.readouterr()
    assert re.fullmatch(r"(second, \d s so far\n){2}", said.err)
    assert re.fullmatch(r"(a word\n){8}first: 0\.\d s\nsecond: 0\.\d s\n", said.out)


def test_another_error_keeps_its_traceback():
    with pytest.raises(KeyError):
        ended(KeyError("a fault of the program"))


def test_nobody_who_reads_the_output_is_no_traceback(monkeypatch, capfd):
    read, write = os.pipe()
    os.close(read)
    with open(write, "w") as closed:  # noqa: PTH123 - not a path
        monkeypatch.setattr(sys, "stdout", closed)
        run = functools.partial(print, "x" * 100_000)
        assert Command(name="try", purpose="", add_arguments=lambda parser: None, run=run)([]) == 1
    assert capfd.readouterr() == ("", "")
