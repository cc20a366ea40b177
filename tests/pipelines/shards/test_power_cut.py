"""A build survives a power cut at any moment, as far as a file system keeps what it was told to.

It survives a full disk and a store that fails as well.
"""

import errno
import itertools
import os
import random

import pytest
from builds import build_here, files_of, run_build_here
from image_files import jpeg, write_tree, write_zip
from kaggle_stand_in import ARCHIVE, DATASET, StandIn
from power_cut import Disk
from s3_server import BUCKET

from pipelines.sources import kaggle


@pytest.fixture
def source(tmp_path):
    names = [f"train/{c}/{c}-{n}-1.jpeg" for n in range(12) for c in ("CNV", "DME")]
    files = {name: jpeg(seed) for seed, name in enumerate(names)}
    files["train/CNV/CNV-20-1.jpeg"] = files["train/CNV/CNV-3-1.jpeg"]
    files["train/CNV/CNV-21-1.jpeg"] = b"no image"
    return write_zip(tmp_path / "in.zip", files)


FLAGS = ("--num_shards=3", "--max_reject_fraction=0.5")


def test_after_a_power_cut_the_same_command_ends_the_same(source, tmp_path):
    (tmp_path / "disk").mkdir()
    disk, states = Disk(tmp_path / "disk", random.Random(5)), []
    with disk.watched(lambda: states.append(disk.after_cut())):
        output = build_here(source, disk.folder / "out", *FLAGS)
    wanted = {f"out/{name}": content for name, content in files_of(output).items()}
    assert disk.sure() == wanted  # after the command no power cut takes anything
    disk.close()
    assert len(states) > 60
    for number, state in enumerate(random.Random(1).sample(states, 3)):
        left = write_tree(tmp_path / str(number), state)
        build_here(source, left / "out", *FLAGS)
        assert files_of(left) == wanted


@pytest.mark.slow
def test_a_disk_that_fails_ends_the_build_and_the_same_command_resumes(source, tmp_path, capsys):
    wanted = files_of(build_here(source, tmp_path / "undisturbed", *FLAGS))
    for number in range(0, 70, 7):
        output, changes = tmp_path / f"{number}" / "out", itertools.count()
        output.parent.mkdir()

        def change(number=number, changes=changes):
            if next(changes) == number:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        disk = Disk(output.parent, random.Random(0))
        with disk.watched(change):
            assert run_build_here(source, output, *FLAGS) in (1, 2)
        disk.close()
        assert "error: " in (said := capsys.readouterr().err)
        assert "Traceback" not in said
        assert run_build_here(source, output, *FLAGS) == 0
        assert files_of(output) == wanted


@pytest.mark.slow
def test_a_store_that_fails_ends_the_build_and_the_same_command_resumes(
    source, s3, tmp_path, capsys
):
    wanted, url = files_of(build_here(source, tmp_path / "out", *FLAGS)), f"s3://{BUCKET}/out"
    flags = (*FLAGS, f"--download_dir={tmp_path}")
    for number in itertools.count(step=7):
        with s3.failing("403 Forbidden", after=number):
            code = run_build_here(source, url, *flags)
        said = capsys.readouterr().err
        assert "Traceback" not in said
        if code == 0:
            break
        assert "error: " in said
        assert run_build_here(source, url, *flags) == 0
        assert s3.read("out/") == wanted
        s3.clear()
    assert number > 20


def test_a_power_cut_never_leaves_a_part_of_a_download_that_counts_as_whole(tmp_path, monkeypatch):
    (tmp_path / "disk").mkdir()
    disk, moments, name = Disk(tmp_path / "disk", random.Random(1)), [], f"{DATASET}.zip"

    def check():
        left = disk.after_cut()
        moments.append(len(left))
        assert left.get(name, ARCHIVE) == ARCHIVE, f"moment {len(moments)}"

    with StandIn(ARCHIVE) as stand_in, disk.watched(check):
        stand_in.log_in(monkeypatch, tmp_path)
        kaggle.download_archive(DATASET, disk.folder)
    assert files_of(disk.folder)[name] == ARCHIVE
    assert len(moments) > 6
    disk.close()
