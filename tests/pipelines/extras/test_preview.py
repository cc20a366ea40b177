import tempfile

import pytest
from builds import build_here, files_of, run_build_here
from image_files import pack, scan_tree

from tfrecord_io.format.manifest import Manifest

FILES = {**scan_tree({"train": 5, "test": 2}), "train/CNV/CNV-900-1.jpeg": b"no image"}


@pytest.mark.parametrize("name", ["scans", "scans.zip"])
def test_it_says_what_the_build_makes_and_leaves_nothing(
    name, secret, tmp_path, monkeypatch, capsys
):
    (scratch := tmp_path / "scratch").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    source, output = pack(tmp_path / name, FILES), tmp_path / "out"
    flags, before = ("--max_reject_fraction=0.1", "--num_shards=3"), files_of(tmp_path)
    assert run_build_here(source, output, *flags, f"--anonymize={secret}", "--preview") == 0
    capsys.readouterr()
    assert run_build_here(source, output, *flags, "--preview") == 0
    assert files_of(tmp_path) == before
    assert list(scratch.iterdir()) == []
    lines = capsys.readouterr().out.splitlines()
    found = Manifest.load(build_here(source, output, *flags))
    assert lines[:2] == [
        "train: 21 images of 4 known patients: CNV 6, DME 5, DRUSEN 5, NORMAL 5",
        "test: 8 images of 1 known patient: CNV 2, DME 2, DRUSEN 2, NORMAL 2",
    ]
    assert found.num_examples == 21 + 8 - 1
    assert f"MB in {len(found.shards)} shards would be written to {output}" in lines[2]
    assert lines[3:] == ["nothing was written"]
