import signal
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfrecord_io import shards


@given(num_shards=st.integers(2, 99_999), data=st.data())
def test_names_sort_as_their_indices_do(num_shards, data):
    first = data.draw(st.integers(0, num_shards - 2))
    second = data.draw(st.integers(first + 1, num_shards - 1))
    assert shards.shard_name("train", first, num_shards) < shards.shard_name(
        "train", second, num_shards
    )


def test_the_name_is_the_usual_one_of_tensorflow():
    assert shards.shard_name("train", 0, 64) == "train-00000-of-00064.tfrecord"
    assert shards.sidecar_name("train-00000-of-00064.tfrecord") == "train-00000-of-00064.json"


@pytest.mark.parametrize("shard_index", [-1, 4])
def test_an_index_outside_the_split_is_refused(shard_index):
    with pytest.raises(ValueError, match=r"must be in 0\.\.3"):
        shards.shard_name("train", shard_index, 4)


def test_a_file_has_no_name_until_it_is_complete(tmp_path):
    path = tmp_path / "file"
    with shards.atomic_write(path) as file:
        file.write(b"half")
        file.flush()
        assert not path.exists()
        file.write(b" whole")
    assert path.read_bytes() == b"half whole"
    assert list(tmp_path.iterdir()) == [path]


def test_the_temporary_file_may_lie_elsewhere(tmp_path):
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    with shards.atomic_write(tmp_path / "file", scratch) as file:
        assert list(tmp_path.iterdir()) == [scratch]
        file.write(b"whole")
    assert (tmp_path / "file").read_bytes() == b"whole"
    assert list(scratch.iterdir()) == []


def test_an_exception_leaves_the_old_file_and_no_other(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"old")

    def stop_half_way():
        with shards.atomic_write(path) as file:
            file.write(b"new")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        stop_half_way()
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_of_two_writers_at_once_the_last_to_finish_wins_whole(tmp_path):
    path = tmp_path / "file"
    with shards.atomic_write(path) as first:
        first.write(b"first")
        with shards.atomic_write(path) as second:
            second.write(b"second")
        assert path.read_bytes() == b"second"
    assert path.read_bytes() == b"first"


def test_a_killed_writer_leaves_no_file_of_that_name(tmp_path):
    program = (
        "import os, signal, sys\n"
        "from tfrecord_io import shards\n"
        "with shards.atomic_write(sys.argv[1]) as file:\n"
        "    file.write(b'half'); file.flush()\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    path = tmp_path / "file"
    done = subprocess.run([sys.executable, "-c", program, path], check=False)
    assert done.returncode == -signal.SIGKILL
    assert not path.exists()
    assert [p.name.endswith(".tmp") for p in tmp_path.iterdir()] == [True]
