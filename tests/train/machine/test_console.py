import contextlib
import os
from pathlib import Path

import pytest
from image_files import write_tree
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


def test_files_are_listed_once_without_hidden_ones_and_pipes_wherever_their_folder_is(
    tmp_path, monkeypatch
):
    names = ("b.png", "a.jpeg", "more/c.png", ".hidden/d.png", ".DS_Store")
    folder = write_tree(tmp_path / ".cache" / "scans", dict.fromkeys(names, b""))
    (folder / "broken.png").symlink_to("nowhere.png")
    (folder / "link").symlink_to(folder / "more")
    os.mkfifo(folder / "pipe")
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    shown = ["a.jpeg", "b.png", "broken.png", "link", "more/c.png"]
    for path in (folder, Path("../.cache/scans")):
        assert console.list_files([path]) == [path / name for name in shown]
    first, again = folder / "b.png", folder / ".." / "scans" / "b.png"
    found = console.list_files([first, folder / ".DS_Store", folder, again])
    assert found == [folder / name for name in ("b.png", ".DS_Store", "a.jpeg", *shown[2:])]


# Python alone would print and forget what is raised while an object is destroyed, and a library
# turns it into another error, with its messages hidden.
DESTROYED = "type('Bar', (), {'__del__': press})()"
TRACED = """
with console.hide_native_noise():
    try:
        press()
    except BaseException:
        raise RuntimeError("this cannot be traced") from None
"""


@pytest.mark.parametrize(
    ("act", "name", "code"), [(DESTROYED, "SIGINT", 130), (TRACED, "SIGTERM", 143)]
)
def test_a_signal_ends_a_command_whatever_libraries_make_of_it(act, name, code):
    program = f"""
import os, signal, time
from train.machine import console

def press(*found):
    os.kill(os.getpid(), signal.{name})
    time.sleep(60)

def act(arguments):
    with console.cleaned_up(lambda: print("cleaned up", flush=True)):
        exec({act!r}, globals())
        time.sleep(60)

console.TrainerCommand(name="act", purpose="", add_arguments=lambda parser: None, run=act)([])
"""
    result = run_python(program)
    assert (result.returncode, result.stdout) == (code, "cleaned up\n")
    assert result.stderr == "stopped; run the same command again to continue\n"
