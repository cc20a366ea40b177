"""The check of a downloaded archive: any damage is found, and a check is remembered."""

import io
import os
import re
import shutil
import tracemalloc
import zipfile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kaggle_stand_in import ARCHIVE, DATASET, NAME, make_archive

from pipelines import errors
from pipelines.sources.kaggle.archive_check import is_verified, verify_archive
from pipelines.sources.kaggle.download import download_archive


def offset_of_member(index: int) -> int:
    """Returns an offset in the middle of a member's data."""
    with zipfile.ZipFile(io.BytesIO(ARCHIVE)) as file:
        return file.infolist()[index].header_offset + 75_000


@pytest.mark.parametrize("index", [2, 3], ids=["stored", "deflated"])
def test_a_corrupt_archive_of_the_right_size_is_named_by_member_and_moved(tmp_path, index):
    archive = tmp_path / NAME
    content = bytearray(ARCHIVE)
    content[offset_of_member(index)] ^= 0xFF
    archive.write_bytes(content)

    with pytest.raises(errors.BuildError) as error:
        download_archive(DATASET, tmp_path)
    for text in (
        "has all its bytes, but is corrupt in 1 place, first in",
        f"'OCT2017 /train/CNV/CNV-{index}-1.jpeg'",
        f"moved to {tmp_path / NAME}.corrupt",
        "Run the same command again",
    ):
        assert text in str(error.value)
    assert [path.name for path in tmp_path.iterdir()] == [f"{NAME}.corrupt"]


def test_an_archive_that_is_no_zip_is_refused(tmp_path):
    archive = tmp_path / NAME
    archive.write_bytes(ARCHIVE[:-100])

    with pytest.raises(errors.BuildError, match="its zip directory cannot be read"):
        download_archive(DATASET, tmp_path)


def test_an_archive_with_bytes_of_no_member_is_refused_and_kept(tmp_path):
    archive = tmp_path / NAME
    archive.write_bytes(ARCHIVE + ARCHIVE)
    with pytest.raises(errors.BuildError, match=r"belong to no member(?s:.*)It was kept"):
        verify_archive(archive, DATASET)
    assert archive.exists()


def test_many_corrupt_members_are_counted(tmp_path):
    content = bytearray(ARCHIVE)
    for index in range(8):
        content[offset_of_member(index)] ^= 1
    (tmp_path / NAME).write_bytes(content)

    with pytest.raises(errors.BuildError, match=r"in 8 places, first in 'OCT2017 /.*-0-1\.jpeg'"):
        verify_archive(tmp_path / NAME, DATASET)


def test_an_archive_that_changed_since_its_check_is_checked_again(tmp_path):
    archive = tmp_path / NAME
    archive.write_bytes(ARCHIVE)
    download_archive(DATASET, tmp_path)
    assert is_verified(archive, DATASET)
    content = bytearray(ARCHIVE)
    content[offset_of_member(0)] ^= 1
    archive.write_bytes(content)
    os.utime(archive, ns=(1, 1))
    assert not is_verified(archive, DATASET)

    with pytest.raises(errors.BuildError, match="corrupt"):
        download_archive(DATASET, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [f"{NAME}.corrupt"]


def test_an_archive_that_cannot_be_read_is_explained(tmp_path):
    with pytest.raises(errors.BuildError, match="could not be checked: No such file"):
        verify_archive(tmp_path / NAME, DATASET)


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"size": 1}', "\x00"])
def test_a_damaged_note_of_a_check_is_a_check_that_never_was(tmp_path, content):
    archive = tmp_path / NAME
    archive.write_bytes(ARCHIVE)
    note = tmp_path / f"{NAME}.verified.json"
    note.write_text(content)
    assert not is_verified(archive, DATASET)

    download_archive(DATASET, tmp_path)

    assert is_verified(archive, DATASET)


def test_the_check_streams(tmp_path):
    archive = tmp_path / NAME
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("zeros", bytes(64_000_000))
        file.writestr("folder/", b"")
    tracemalloc.start()
    try:
        verify_archive(archive, DATASET)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    assert peak < 16_000_000


def test_a_zip_whose_directory_lost_a_member_is_refused(tmp_path):
    # One bit of the last but one entry's comment length, and zipfile reads the last as a comment.
    archive = tmp_path / NAME
    content = bytearray(SMALL)
    entries = [found.start() for found in re.finditer(rb"PK\x01\x02", SMALL)]
    content[entries[-2] + 32] = len(SMALL) - entries[-1] - 22
    archive.write_bytes(content)

    with pytest.raises(errors.BuildError, match="expected 3 members, found 2"):
        verify_archive(archive, DATASET)


SMALL = make_archive(num_members=3, member_bytes=400)


@settings(max_examples=150, deadline=None)
@given(offset=st.integers(0, len(SMALL) - 1), mask=st.integers(1, 255))
def test_any_changed_byte_is_either_harmless_or_found(tmp_path_factory, offset, mask):
    folder = tmp_path_factory.mktemp("changed")
    archive = folder / NAME
    content = bytearray(SMALL)
    content[offset] ^= mask
    archive.write_bytes(content)
    complaint = None
    try:
        verify_archive(archive, DATASET)
    except errors.BuildError as error:
        complaint = str(error)
    if complaint is None:
        with zipfile.ZipFile(io.BytesIO(SMALL)) as sound, zipfile.ZipFile(archive) as changed:
            read = [(name, changed.read(name)) for name in changed.namelist()]
            assert read == [(name, sound.read(name)) for name in sound.namelist()]
    else:
        assert "corrupt" in complaint or "is refused" in complaint
    shutil.rmtree(folder)
