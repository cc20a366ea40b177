import os
import stat

import pytest

from tfrecord_io.stores import files
from tfrecord_io.stores.files import atomic_write


@pytest.mark.parametrize("elsewhere", [False, True])
def test_a_file_has_no_name_until_it_is_complete(tmp_path_factory, tmp_path, elsewhere):
    path = tmp_path / "file"
    scratch = tmp_path_factory.mktemp("scratch") if elsewhere else tmp_path
    with atomic_write(path, scratch) as file:
        file.write(b"half")
        file.flush()
        assert not path.exists()
        assert len(list(scratch.iterdir())) == 1
        file.write(b" whole")
    assert path.read_bytes() == b"half whole"
    assert {*tmp_path.iterdir(), *scratch.iterdir()} == {path}


def test_an_exception_leaves_the_old_file_and_no_other(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"old")

    def stop_half_way():
        with atomic_write(path) as file:
            file.write(b"new")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        stop_half_way()
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_of_two_writers_at_once_the_last_to_finish_wins_whole(tmp_path):
    path = tmp_path / "file"
    with atomic_write(path) as first:
        first.write(b"first")
        with atomic_write(path) as second:
            second.write(b"second")
        assert path.read_bytes() == b"second"
    assert path.read_bytes() == b"first"


def test_a_private_file_is_its_owners_alone_and_not_opened_through_a_link(tmp_path):
    old, new = tmp_path / "old", tmp_path / "new"
    old.write_bytes(b"")
    old.chmod(0o644)
    before = os.umask(0o277)
    try:
        os.close(files.open_private(old, os.O_RDWR))
        with atomic_write(new, is_private=True) as file:
            file.write(b"a patient")
    finally:
        os.umask(before)
    assert [stat.S_IMODE(path.stat().st_mode) for path in (old, new)] == [0o600, 0o600]
    (tmp_path / "link").symlink_to("new")
    with pytest.raises(OSError, match="symbolic links"):
        files.open_private(tmp_path / "link", os.O_RDWR)
