"""A build survives a power cut at any moment, as far as a file system keeps what it was told to."""

import os
import random

import pytest
from builds import build_here, files_of
from image_files import jpeg, write_zip
from kaggle_stand_in import ARCHIVE, DATASET, NAME, TOKEN, StandIn
from power_cut import Disk

from pipelines.sources import kaggle


@pytest.fixture
def source(tmp_path):
    names = [f"train/{c}/{c}-{n}-1.jpeg" for n in range(12) for c in ("CNV", "DME")]
    files = {name: jpeg(seed) for seed, name in enumerate(names)}
    files["train/CNV/CNV-20-1.jpeg"] = files["train/CNV/CNV-3-1.jpeg"]
    files["train/CNV/CNV-21-1.jpeg"] = b"no image"
    return write_zip(tmp_path / "in.zip", files)


@pytest.mark.parametrize("duplicates", ["keep", "drop"])
def test_after_the_command_no_power_cut_takes_anything(duplicates, source, tmp_path):
    flags = (f"--duplicates={duplicates}", "--num_shards=3", "--max_reject_fraction=0.5")
    (tmp_path / "disk").mkdir()
    disk = Disk(tmp_path / "disk", random.Random(duplicates))
    with disk.watched(int):
        output = build_here(source, disk.folder / "out", *flags)
    assert disk.sure() == {f"out/{name}": content for name, content in files_of(output).items()}
    disk.close()


def test_a_power_cut_never_leaves_a_part_of_a_download_that_counts_as_whole(tmp_path, monkeypatch):
    (tmp_path / "disk").mkdir()
    disk, moments = Disk(tmp_path / "disk", random.Random(1)), []

    def check():
        left = disk.after_cut()
        moments.append(len(left))
        assert left.get(NAME, ARCHIVE) == ARCHIVE, f"moment {len(moments)}"

    for name in [*os.environ]:
        if name.startswith(("KAGGLE_", "XDG_")) or name.lower() == "no_proxy":
            monkeypatch.delenv(name)
    with StandIn(ARCHIVE) as stand_in, disk.watched(check):
        for name, value in stand_in.environment(tmp_path, KAGGLE_API_TOKEN=TOKEN).items():
            monkeypatch.setenv(name, value)
        kaggle.download_archive(DATASET, disk.folder)
    assert disk.sure()[NAME] == ARCHIVE
    assert len(moments) > 8
    disk.close()
