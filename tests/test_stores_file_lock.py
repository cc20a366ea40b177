"""A lock that dies with its process."""

import os
import subprocess
import sys

import pytest

from pipelines.stores import file_lock


def test_a_lock_that_is_held_is_refused_and_names_its_holder(tmp_path):
    path = tmp_path / "folder" / "lock"
    descriptor = file_lock.acquire(path)

    with pytest.raises(BlockingIOError):
        file_lock.acquire(path)

    assert file_lock.holder(path) == str(os.getpid())
    os.close(descriptor)
    os.close(file_lock.acquire(path))


def test_a_lock_dies_with_its_process(tmp_path):
    path = tmp_path / "lock"
    code = (
        "import os, pathlib, sys\n"
        "from pipelines.stores import file_lock\n"
        "file_lock.acquire(pathlib.Path(sys.argv[1]))\n"
        "os.kill(os.getpid(), 9)"
    )
    killed = subprocess.run([sys.executable, "-c", code, str(path)], timeout=60, check=False)

    assert killed.returncode == -9
    assert file_lock.holder(path) != str(os.getpid())
    os.close(file_lock.acquire(path))


def test_a_lock_file_that_names_nobody_has_an_unknown_holder(tmp_path):
    assert file_lock.holder(tmp_path / "lock") == "unknown"


def test_a_lock_on_a_file_that_its_last_holder_deleted_is_taken_anew(tmp_path, monkeypatch):
    path = tmp_path / "lock"
    locked = []

    def lock(descriptor: int, operation: int) -> None:
        if not locked:
            path.unlink()  # As the last holder does, between our open and our lock.
        locked.append(descriptor)

    monkeypatch.setattr(file_lock.fcntl, "flock", lock)
    descriptor = file_lock.acquire(path)

    assert len(locked) == 2
    assert os.path.samestat(os.fstat(descriptor), path.stat())
    assert path.read_text() == str(os.getpid())
    os.close(descriptor)
