"""An input that cannot be read ends the build; only a file that is damaged is a reject."""

import errno
import gzip
import itertools
import os
import zipfile
import zlib
from pathlib import Path

import pytest
from builds import run_build_here
from image_files import pack, scan_tree, write_tree
from PIL import ImageFile, UnidentifiedImageError
from source_files import list_input

from pipelines import build_tfrecords, errors
from pipelines.sources import directory
from tfrecord_io.format.manifest import Manifest

TREE = scan_tree({"train": 3})
NAME = "train/CNV/CNV-100-1.jpeg"


def system_error(number):
    return OSError(number, os.strerror(number))


CONTENT_ERRORS = [
    OSError("image file is truncated"),
    UnidentifiedImageError("cannot identify image file"),
    gzip.BadGzipFile("Not a gzipped file"),
    zlib.error("invalid block type"),
    EOFError("Compressed file ended"),
    NotImplementedError("compression type 99"),
    OverflowError("Python int too large"),
    system_error(errno.EINVAL),
]
NUMBERS = [errno.EACCES, errno.ENOENT, errno.ENOTDIR, errno.EIO, errno.ESTALE, errno.EMFILE]
MACHINE_ERRORS = [*map(system_error, NUMBERS), MemoryError()]


# ---- while the input is listed

# For each kind of input, a function that listing it calls.
LISTINGS = {
    "zip": (zipfile, "ZipFile"),
    "folder": (os, "scandir"),
    "file": (os, "stat"),
}


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("inputs")
    for kind in ("zip", "folder"):
        pack(folder / f"scans.{kind}", TREE)
    return folder


# Listing a folder needs no memory to speak of, and a link that leads nowhere is a reject.
DISK_ERRORS = [system_error(errno.EACCES), system_error(errno.EIO)]
LISTING_ERRORS = [
    (kind, error)
    for kind in LISTINGS
    for error in (DISK_ERRORS if kind in ("folder", "file") else MACHINE_ERRORS)
]


@pytest.mark.parametrize(("kind", "error"), LISTING_ERRORS, ids=repr)
def test_an_input_that_cannot_be_listed_ends_the_build(inputs, tmp_path, monkeypatch, kind, error):
    where, name = LISTINGS[kind]
    original = getattr(where, name)

    def fail(*arguments, **options):
        if kind == "file" and not str(arguments[0]).endswith(NAME):
            return original(*arguments, **options)
        error.filename = arguments[0] if kind == "folder" else None
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(where, name, fail)
        with pytest.raises(errors.BuildError, match=r"may not read 1 files|cannot read .*again"):
            list_input(inputs / f"scans.{kind.replace('file', 'folder')}")


def test_files_that_may_not_be_read_end_the_build_before_an_image_is_decoded(
    tmp_path, monkeypatch, capsys
):
    scans = write_tree(tmp_path / "scans", {**TREE, "train/CNV/.hidden": b""})
    forbidden = [scans / name for name in (*list(TREE)[:4], "train/CNV/.hidden")]
    for path in forbidden:
        path.chmod(0)
    # Nothing is forbidden to root.
    monkeypatch.setattr(os, "access", lambda path, _: Path(path) not in forbidden)
    assert run_build_here(scans, tmp_path / "out") == 1
    message = capsys.readouterr().err
    assert f"may not read 4 files or folders of the input, such as {min(TREE)}" in message
    assert "chmod" in message
    assert "begin with a dot" in message
    assert not (tmp_path / "out").exists()


# ---- while the images are read


@pytest.fixture
def after_listing(monkeypatch):
    """Returns a function that calls another one when the input has been listed, once."""

    def call(change):
        run = build_tfrecords.run

        def changed(*arguments):
            monkeypatch.setattr(build_tfrecords, "run", run)
            change()
            run(*arguments)

        monkeypatch.setattr(build_tfrecords, "run", changed)

    return call


@pytest.mark.parametrize(
    ("name", "where", "function", "error"),
    [
        ("scans.folder", Path, "open", system_error(errno.EIO)),
        ("scans.zip", os, "pread", system_error(errno.EIO)),
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
    assert "run the same command again" in (message := capsys.readouterr().err)
    assert where is not Path or f"cannot read {path / NAME}: " in message
    assert run_build_here(path, tmp_path / "out") == 0
    found = Manifest.load(tmp_path / "out")
    assert (found.counts["examples"], found.rejects) == (len(TREE), {})


@pytest.mark.parametrize(
    "change",
    [
        lambda content: content[: len(content) // 2],
        lambda content: bytes(200) + content[200:],
    ],
    ids=["cut", "overwritten"],
)
def test_a_zip_that_changes_during_the_build_is_said_to_have_changed(
    inputs, tmp_path, after_listing, capsys, change
):
    path = tmp_path / "scans.zip"
    content = (inputs / "scans.zip").read_bytes()
    path.write_bytes(content)
    after_listing(lambda: path.write_bytes(change(content)))
    assert run_build_here(path, tmp_path / "out") == 1
    assert f"{path} changed since the build began" in capsys.readouterr().err


def test_a_disk_that_garbles_a_file_without_a_checksum_is_found_out(
    inputs, tmp_path, monkeypatch, capsys
):
    original = directory._DirectoryReader.read

    def garble(self, member):
        content = original(self, member)
        return content if member.name != NAME else os.urandom(len(content))

    monkeypatch.setattr(directory._DirectoryReader, "read", garble)
    assert run_build_here(inputs / "scans.folder", tmp_path / "out") == 1
    assert f"{NAME} has other bytes each time" in capsys.readouterr().err
