import os
import subprocess
import sys

import pytest

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


def test_another_error_keeps_its_traceback():
    with pytest.raises(KeyError):
        ended(KeyError("a fault of the program"))


def test_folders_may_stand_on_both_sides_of_a_flag():
    def add(parser):
        parser.add_argument("--flag")
        parser.add_argument("folders", nargs="+")

    taken = []
    command = Command(name="try", purpose="", add_arguments=add, run=taken.append)
    assert command(["a", "--flag=x", "b"]) == 0
    assert vars(taken[0]) == {"flag": "x", "folders": ["a", "b"]}


def test_nobody_who_reads_the_output_is_no_traceback():
    program = (
        "from tfrecord_io.terminal.command import Command\n"
        "run = lambda arguments: print('x' * 100_000)\n"
        "Command(name='try', purpose='', add_arguments=lambda parser: None, run=run)([])"
    )
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run([sys.executable, "-c", program], stdout=write, stderr=subprocess.PIPE)
    os.close(write)
    assert (done.returncode, done.stderr) == (0, b"")
