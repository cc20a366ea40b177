"""A build survives a power cut at any moment, as far as a file system keeps what it was told to."""

import random
import subprocess
import sys

import pytest
from builds import ROOT, build_here, files_of
from image_files import jpeg, write_zip
from kaggle_stand_in import ARCHIVE, DATASET, NAME, TOKEN, StandIn
from power_cut import Disk


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


# Checks, before and after each change, that no cut leaves a part that counts as a whole archive.
DOWNLOAD = f"""
import pathlib, random, sys
from kaggle_stand_in import ARCHIVE
from pipelines.sources import kaggle
from power_cut import Disk
folder = pathlib.Path(sys.argv[1])
disk, moments = Disk(folder, random.Random(1)), []
def moment():
    left = disk.after_cut()
    moments.append(len(left))
    if {NAME!r} in left:
        assert left[{NAME!r}] == ARCHIVE, f"moment {{len(moments)}}: {{len(left[{NAME!r}])}} bytes"
with disk.watched(moment):
    kaggle.download_archive({DATASET!r}, folder)
assert disk.sure()[{NAME!r}] == ARCHIVE
print(len(moments))
"""


def test_a_power_cut_never_leaves_a_part_of_a_download_that_counts_as_whole(tmp_path):
    with StandIn(ARCHIVE) as stand_in:
        variables = {"KAGGLE_API_TOKEN": TOKEN, "PYTHONPATH": f"{ROOT}:{ROOT / 'tests/helpers'}"}
        done = subprocess.run(
            [sys.executable, "-c", DOWNLOAD, str(tmp_path)],
            env=stand_in.environment(tmp_path, **variables),
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 8
