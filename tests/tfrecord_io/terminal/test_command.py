import functools
import os
import sys

import pytest

from tfrecord_io.terminal.command import Command
from tfrecord_io.terminal.errors import MessageError, StoreError, UserError


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
        (StoreError("wrong"), {MessageError: 3}, 3),
        (OSError("wrong"), {MessageError: 3}, 1),
    ],
)
def test_an_error_for_users_is_a_line_and_an_exit_code(error, codes, code, capsys):
    assert ended(error, codes=codes) == code
    assert capsys.readouterr() == ("", "error: wrong\n")


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
