"""A lock that dies with its process."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from pipelines.stores import file_lock


def busy(process: str) -> Exception:
    return RuntimeError(f"held by {process}")


def test_a_lock_that_is_held_is_refused_and_names_its_holder(tmp_path):
    path = tmp_path / "folder" / "lock"
    with file_lock.held(path, busy):
        with (
            pytest.raises(RuntimeError, match=f"held by {os.getpid()}"),
            file_lock.held(path, busy),
        ):
            pass
        path.write_text("")  # as it is before its holder has written its id
        with pytest.raises(RuntimeError, match="held by unknown"), file_lock.held(path, busy):
            pass
    assert not path.exists()
    with file_lock.held(path, busy):
        pass


def test_the_lock_of_a_later_holder_stays_where_the_block_deleted_its_folder(tmp_path):
    path = tmp_path / "folder" / "lock"
    with file_lock.held(path, busy):
        shutil.rmtree(path.parent)
        later = file_lock.held(path, busy)
        later.__enter__()
    assert path.read_text() == str(os.getpid())
    with pytest.raises(RuntimeError), file_lock.held(path, busy):
        pass
    later.__exit__(None, None, None)
    assert not path.exists()


def test_a_lock_dies_with_its_process(tmp_path):
    path = tmp_path / "lock"
    code = (
        "import os, pathlib, sys\n"
        "from pipelines.stores import file_lock\n"
        "with file_lock.held(pathlib.Path(sys.argv[1]), RuntimeError):\n"
        "    os.kill(os.getpid(), 9)"
    )
    killed = subprocess.run([sys.executable, "-c", code, str(path)], timeout=60, check=False)

    assert killed.returncode == -9
    assert path.read_text() != str(os.getpid())
    with file_lock.held(path, busy):
        assert path.read_text() == str(os.getpid())


def test_a_lock_on_a_file_that_its_last_holder_deleted_is_taken_anew(tmp_path, monkeypatch):
    path = tmp_path / "lock"
    locked: list[Path] = []

    def lock(file: object, operation: int) -> None:
        if not locked:
            path.unlink()  # As the last holder does, between our open and our lock.
        locked.append(path)

    monkeypatch.setattr(file_lock.fcntl, "flock", lock)
    with file_lock.held(path, busy):
        assert len(locked) == 2
        assert path.read_text() == str(os.getpid())
