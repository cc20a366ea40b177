import itertools
import random
import re
from pathlib import Path

import pytest
from builds import files_of
from image_files import write_tree
from power_cut import Disk, killed_anywhere
from s3_server import BUCKET

from tfrecord_io.stores import replace
from tfrecord_io.stores.folder import Folder
from tfrecord_io.terminal.errors import StoreError

OWN = re.compile(r"([a-z]+/)*[a-z]+\.json")
OLD = {"manifest.json": b"old", "metrics.json": b"old", "gone/deep/er.json": b"old"}
NEW = {"manifest.json": b"new", "sub/more.json": b"new"}
MINE = {"notes.txt": b"mine", "sub/notes.txt": b"mine"}


def by_waiting(folder):
    """The new content waits until it is whole."""
    aside = replace.waiting(folder)
    for name, content in NEW.items():
        if not folder.remote:
            Path(aside.path(name)).parent.mkdir(exist_ok=True)
        aside.write(name, content)
    replace.promise(folder)
    replace.complete(folder, OWN)


def by_moving(folder):
    """The old content waits until the new one is whole."""
    replace.set_aside(folder, OWN)
    write_tree(Path(folder.root), NEW)
    replace.forget(folder)


@pytest.mark.parametrize("way", [by_waiting, by_moving])
def test_a_kill_anywhere_leaves_the_old_or_the_new_and_what_the_tool_did_not_write(way, tmp_path):
    run, left = write_tree(tmp_path / "run", OLD | MINE), []
    folder = Folder(run)

    def settle():
        replace.settle(folder, OWN)
        left.append(files_of(run))
        assert not list(run.rglob(".*"))

    for number, _ in enumerate(killed_anywhere(run, tmp_path / "first", lambda: way(folder))):
        # Whoever settles it may be killed as well.
        for _ in killed_anywhere(run, tmp_path / f"second{number}", settle):
            settle()
    assert len(left) > 20
    assert {True, False} == {found == OLD | MINE for found in left}
    assert all(found in (OLD | MINE, NEW | MINE) for found in left)
    assert left[-1] == NEW | MINE


@pytest.mark.parametrize("step", [3, pytest.param(1, marks=pytest.mark.slow)])
def test_on_a_store_a_failure_anywhere_leaves_the_old_or_the_new(s3, step):
    left, folder = [], Folder(f"s3://{BUCKET}/run")
    for number in itertools.count(0, step):
        for name, content in (OLD | MINE).items():
            s3.put(f"run/{name}", content)
        try:
            with s3.failing("403 Forbidden", after=number):
                by_waiting(folder)
        except StoreError:
            replace.settle(folder, OWN)
            left.append(s3.read("run/"))
        else:
            break
    assert s3.read("run/") == NEW | MINE
    assert {True, False} == {found == OLD | MINE for found in left}
    assert all(found in (OLD | MINE, NEW | MINE) for found in left)


def test_after_a_replacement_no_power_cut_takes_anything(tmp_path):
    run = write_tree(tmp_path / "run", OLD | MINE)
    disk = Disk(run, random.Random(0))
    with disk.watched(lambda: None):
        by_waiting(Folder(run))
    assert disk.sure() == NEW | MINE
    assert not (run / "gone").exists()
    disk.close()
