import contextlib
import os
import threading

import pytest

from pipelines.shards.write import WriteBehind
from tfrecord_io.stores.folder import BUILD_DIR, Folder


def test_a_shard_has_its_name_on_the_disk_before_the_sidecar_that_proves_it(tmp_path, monkeypatch):
    on_disk: list[set[str]] = []
    fsync = os.fsync

    def record(descriptor: int):
        fsync(descriptor)
        if os.path.samestat(os.fstat(descriptor), (tmp_path / "out").stat()):
            on_disk.append(set(os.listdir(descriptor)) - {BUILD_DIR})

    storage = Folder(str(tmp_path / "out"))
    storage.make_build_dir()
    monkeypatch.setattr(os, "fsync", record)
    with contextlib.closing(WriteBehind(storage)) as files:
        for name in ("a.tfrecord", "a.json", "b.tfrecord", "b.json", "manifest.json"):
            with files.create(name):
                pass
        files.wait()
    assert on_disk == [
        {"a.tfrecord"},
        {"a.tfrecord", "a.json", "b.tfrecord"},
        {"a.tfrecord", "a.json", "b.tfrecord", "b.json"},
    ]


class SlowStorage:
    """Finishes its files when it is let, and remembers in which order."""

    def __init__(self):
        self.may_finish = threading.Event()
        self.finished = []
        self.removed = []

    @contextlib.contextmanager
    def create(self, name):
        try:
            yield name
        except Exception:
            self.removed.append(name)
            raise
        assert self.may_finish.wait(20)
        if name == "bad":
            raise OSError(28, "No space left on device")
        self.finished.append(name)


@pytest.fixture
def slow_behind():
    with contextlib.closing(WriteBehind(SlowStorage())) as behind:
        yield behind


def write_empty(behind, names):
    for name in names:
        with behind.create(name):
            pass


def test_after_a_file_that_could_not_be_finished_no_other_is(slow_behind):
    slow = slow_behind._folder
    write_empty(slow_behind, ("good", "bad", "sidecar"))
    slow.may_finish.set()
    with pytest.raises(OSError, match="No space left"):
        slow_behind.wait()
    assert (slow.finished, slow.removed) == (["good"], ["sidecar"])
    # The next attempt begins anew, and a failure ends the writing that goes on.
    with pytest.raises(OSError, match="No space left"):
        write_empty(slow_behind, ["sidecar", "bad", *"0123456789"])
    assert slow.finished == ["good", "sidecar"]
