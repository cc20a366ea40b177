import contextlib
import os
import signal

import pytest
from marked_images import run_python

from tfrecord_io.terminal.errors import UserError
from train.machine import console


@pytest.mark.parametrize(
    ("error", "is_shown"),
    [(None, False), (RuntimeError(), True), (UserError("no such device"), False)],
    ids=["success", "failure", "a message for users"],
)
def test_what_native_code_writes_is_held_back_unless_something_fails(capfd, error, is_shown):
    with contextlib.suppress(RuntimeError, UserError), console.hide_native_noise():
        os.write(2, b"noise")
        if error:
            raise error
    assert ("noise" in capfd.readouterr().err) == is_shown
    os.write(2, b"news")
    assert capfd.readouterr().err == "news"


def test_what_the_user_set_stays(monkeypatch):
    monkeypatch.setenv("KERAS_BACKEND", "jax")
    monkeypatch.delenv("TF_CPP_MIN_LOG_LEVEL", raising=False)
    console.set_defaults()
    assert os.environ["KERAS_BACKEND"] == "jax"
    assert os.environ["TF_CPP_MIN_LOG_LEVEL"] == "2"


# Ctrl-C while an object is destroyed, which Python alone would print and forget; and while a
# library does something that it turns into another error, with its messages hidden.
DESTROYED = """
class Bar:
    def __del__(self):
        press()
Bar()
"""
TRACED = """
with console.hide_native_noise():
    try:
        press()
    except BaseException:
        raise RuntimeError("this cannot be traced") from None
"""


@pytest.mark.parametrize("act", [DESTROYED, TRACED])
def test_a_signal_ends_a_command_whatever_libraries_make_of_it(act):
    pressed = f"""
import os, signal, time
from train.machine import console

def press():
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(60)

def act(arguments):
    with console.cleaned_up(lambda: print("cleaned up", flush=True)):
        exec({act!r}, globals())
        time.sleep(60)

console.TrainerCommand(name="act", purpose="", add_arguments=lambda parser: None, run=act)([])
"""
    for name, code in (("SIGINT", 130), ("SIGTERM", 143)):
        result = run_python(pressed.replace("SIGINT", name))
        assert (result.returncode, result.stdout) == (code, "cleaned up\n")
        assert result.stderr == "stopped; run the same command again to continue\n"


def test_reading_a_mapped_file_that_was_cut_off_says_where_it_was(tmp_path):
    path = tmp_path / "shard"
    path.write_bytes(bytes(100_000))
    program = """
import mmap, os, sys
from train.machine import console
console.set_defaults()
with open(sys.argv[1], "rb") as file:
    mapped = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
os.truncate(sys.argv[1], 0)
mapped[50_000]
"""
    ended = run_python(program, path)
    assert ended.returncode == -signal.SIGBUS
    assert "Bus error" in ended.stderr
    assert 'File "<string>", line 8' in ended.stderr
