"""An input that cannot be read ends the build; only a file that is damaged is a reject."""

import errno
import itertools
import os
import zipfile
from pathlib import Path

import pytest
from builds import run_build_here
from image_files import pack, scan_tree
from PIL import ImageFile
from source_files import list_input

from pipelines import errors
from tfrecord_io.format.manifest import Manifest

TREE = scan_tree({"train": 3})
NAME = "train/CNV/CNV-100-1.jpeg"


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("inputs")
    for kind in ("zip", "folder"):
        pack(folder / f"scans.{kind}", TREE)
    return folder


# ---- while the input is listed


@pytest.mark.parametrize(
    ("name", "where", "function", "number"),
    [
        ("scans.zip", zipfile, "ZipFile", errno.EIO),
        ("scans.folder", os, "scandir", errno.EIO),
        ("scans.folder", os, "stat", errno.EACCES),
    ],
)
def test_an_input_that_cannot_be_listed_ends_the_build(
    inputs, monkeypatch, name, where, function, number
):
    original = getattr(where, function)

    def fail(place, *arguments, **options):
        if function == "stat" and not str(place).endswith(NAME):
            return original(place, *arguments, **options)
        raise OSError(number, os.strerror(number), place if function == "scandir" else None)

    with monkeypatch.context() as patch:
        patch.setattr(where, function, fail)
        with pytest.raises(errors.BuildError, match=r"cannot read .*again"):
            list_input(inputs / name)


# ---- while the images are read


@pytest.mark.parametrize(
    ("name", "where", "function", "error"),
    [
        ("scans.folder", Path, "open", OSError(errno.EIO, "Input/output error")),
        ("scans.zip", os, "pread", OSError(errno.EIO, "Input/output error")),
        ("scans.zip", ImageFile.ImageFile, "load", MemoryError()),
    ],
    ids=["file", "member", "decoding"],
)
def test_a_machine_that_fails_at_an_image_ends_the_build_and_the_next_one_reads_it(
    inputs, tmp_path, monkeypatch, capsys, name, where, function, error
):
    path, original, calls = inputs / name, getattr(where, function), itertools.count()

    def fail(*arguments, **options):
        if arguments[0] == path / NAME if where is Path else next(calls) >= 4:
            raise error
        return original(*arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(where, function, fail)
        assert run_build_here(path, tmp_path / "out") == 1
    assert "run the same command again" in capsys.readouterr().err
    assert run_build_here(path, tmp_path / "out") == 0
    found = Manifest.load(tmp_path / "out")
    assert (found.counts["examples"], found.rejects) == (len(TREE), {})
