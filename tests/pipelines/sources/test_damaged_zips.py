"""A damaged zip loses no file without a message: what `zipfile` still reads is read, or refused."""

import contextlib
import random
import stat
import zipfile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from image_files import png_of_rows
from source_files import read_input

from pipelines import errors

#: Marks of the records of a zip: member, entry of the index, end, and those of zip64.
MARKS = (b"PK\3\4", b"PK\1\2", b"PK\5\6", b"PK\6\6", b"PK\6\7")
NUMBERS = (0, 1, 0xFF, 0xFFFF, 0x10000, 0x7FFFFFFF, 0xFFFFFFFF)


def write_zip(rng, path):
    """Writes a zip of pictures, stored or deflated, some with odd names."""
    method = rng.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED))
    with zipfile.ZipFile(path, "w", method) as archive:
        for folder in ("train/CNV", "train/NORMAL", "test/CNV"):
            for name in rng.sample(["1", "ä", " b", "日本", "x" * 90, "a'b"], 3):
                archive.writestr(f"{folder}/{name}.png", png_of_rows(2, 1, (rng.randbytes(2),)))


def damaged(rng, data):
    """Returns the bytes after one change, mostly near a record of the archive."""
    mark = rng.choice(MARKS)
    place = data.find(mark, rng.randrange(len(data)))
    place = rng.randrange(len(data)) if place < 0 else min(place + rng.randrange(64), len(data) - 1)
    width = rng.choice((1, 2, 4, 8))
    change = rng.choice(("cut", "flip", "number", "remove"))
    if change == "cut":
        return data[:place]
    if change == "flip":
        return data[:place] + bytes([data[place] ^ 1 << rng.randrange(8)]) + data[place + 1 :]
    if change == "number":
        number = rng.choice(NUMBERS) % (1 << (8 * width))
        return data[:place] + number.to_bytes(width, "little") + data[place + width :]
    return data[:place] + data[place + 512 :]


def read_by_zipfile(path):
    """Returns the content of each member that `zipfile` reads; nothing if it refuses the zip."""
    with contextlib.suppress(Exception), zipfile.ZipFile(path) as archive:
        infos = [info for info in archive.infolist() if not stat.S_ISLNK(info.external_attr >> 16)]
        return {info.filename: archive.read(info) for info in infos if not info.is_dir()}
    return {}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@settings(max_examples=max(300, settings().max_examples))
@given(st.integers(0, 10**9))
def test_what_zipfile_reads_is_read_or_rejected_or_the_zip_is_refused(tmp_path_factory, seed):
    rng, folder = random.Random(seed), tmp_path_factory.mktemp("zip")
    path = folder / "scans.zip"
    write_zip(rng, path)
    is_whole = rng.random() < 0.1
    if not is_whole:
        path.write_bytes(damaged(rng, path.read_bytes()))
    try:
        found = read_input(path)
    except (errors.UserError, errors.BuildError):
        assert not is_whole
        return
    for name, content in read_by_zipfile(path).items():
        is_image = name.endswith(".png") and not any(part[:1] == "." for part in name.split("/"))
        assert not is_image or isinstance(found[name], str) or found[name] == content
