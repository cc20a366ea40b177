"""The check of a downloaded archive: any damage is found, and a check is remembered."""

import errno
import io
import os
import re
import shutil
import tracemalloc
import zipfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kaggle_client_runs import ARCHIVE, NAME, make_archive, offset_of_member
from kaggle_stand_in import (
    DATASET,
)

from pipelines import errors
from pipelines.sources.kaggle.archive_check import is_verified, verify_archive
from pipelines.sources.kaggle.download import download_archive
from pipelines.stores import file_lock


@pytest.mark.parametrize("index", [2, 3], ids=["stored", "deflated"])
def test_a_corrupt_archive_of_the_right_size_is_refused_by_member_and_replaced(work, index):
    work.server.corrupt_at = offset_of_member(ARCHIVE, index)

    outcome = work.run()

    aside = work.downloads / f"{NAME}.corrupt"
    work.assert_failed(
        outcome,
        "has all its bytes, but 1 of its 8 members are corrupt",
        f"'OCT2017 /train/CNV/CNV-{index}-1.jpeg'",
        f"moved to {aside}",
        "Run the same command again",
    )
    assert list(work.downloads.iterdir()) == [aside]
    assert aside.stat().st_size == len(ARCHIVE)
    aside.unlink()
    work.server.corrupt_at = None
    work.assert_downloaded(work.run())


def test_the_bare_client_is_content_with_a_corrupt_archive_of_the_right_size(work):
    work.downloads.mkdir(parents=True)
    work.archive.write_bytes(bytes(len(ARCHIVE)))

    outcome = work.run(bare_client=True)

    assert outcome.code == 0
    assert work.archive.read_bytes() == bytes(len(ARCHIVE))


def test_an_archive_that_is_no_zip_is_refused(tmp_path):
    archive = tmp_path / NAME
    archive.write_bytes(ARCHIVE[:-100])

    with pytest.raises(errors.BuildError, match="its zip directory cannot be read"):
        download_archive(DATASET, tmp_path)


def test_many_corrupt_members_are_counted_and_some_are_named(tmp_path):
    archive = tmp_path / NAME
    content = bytearray(ARCHIVE)
    for index in range(8):
        content[offset_of_member(ARCHIVE, index)] ^= 1
    archive.write_bytes(content)

    with pytest.raises(errors.BuildError) as error:
        verify_archive(archive, DATASET)
    assert "8 of its 8 members" in str(error.value)
    assert str(error.value).count(".jpeg':") == 5
    assert "and 3 more" in str(error.value)


def test_an_archive_that_changed_since_its_check_is_checked_again(tmp_path):
    archive = tmp_path / NAME
    archive.write_bytes(ARCHIVE)
    download_archive(DATASET, tmp_path)
    assert is_verified(archive, DATASET)
    content = bytearray(ARCHIVE)
    content[offset_of_member(ARCHIVE, 0)] ^= 1
    archive.write_bytes(content)
    os.utime(archive, ns=(1, 1))
    assert not is_verified(archive, DATASET)

    with pytest.raises(errors.BuildError, match="corrupt"):
        download_archive(DATASET, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [f"{NAME}.corrupt"]


def test_a_new_download_is_checked_though_the_old_one_was(work):
    work.assert_downloaded(work.run())
    work.archive.unlink()
    work.server.corrupt_at = offset_of_member(ARCHIVE, 0)

    work.assert_failed(work.run(), "1 of its 8 members are corrupt")


def test_an_archive_that_cannot_be_read_is_explained(tmp_path):
    with pytest.raises(errors.BuildError, match="could not be read: No such file"):
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


def test_a_folder_that_others_keep_can_be_read_from(tmp_path, monkeypatch, caplog):
    # Root may write anywhere, so the refusal is made, not provoked.
    def refuse(path: Path) -> int:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    archive = tmp_path / NAME
    archive.write_bytes(ARCHIVE)
    (tmp_path / f"{NAME}.verified.json").mkdir()  # Nothing can be written over a folder.
    monkeypatch.setattr(file_lock, "acquire", refuse)

    assert download_archive(DATASET, tmp_path) == archive

    assert "could not be written" in caplog.text
    assert len(list(tmp_path.iterdir())) == 2


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


SMALL = make_archive(num_members=3, member_bytes=400)


def test_a_zip_whose_directory_lost_a_member_is_refused(tmp_path):
    # One bit of the last but one entry's comment length, and zipfile reads the last as a comment.
    archive = tmp_path / NAME
    content = bytearray(SMALL)
    entries = [found.start() for found in re.finditer(rb"PK\x01\x02", SMALL)]
    content[entries[-2] + 32] = len(SMALL) - entries[-1] - 22
    archive.write_bytes(content)

    with pytest.raises(errors.BuildError, match="expected 3 members, found 2"):
        verify_archive(archive, DATASET)


@pytest.mark.parametrize("distance_from_end", [3, 4, 5, 6])
def test_a_directory_whose_offset_is_damaged_is_a_corrupt_archive(tmp_path, distance_from_end):
    # The four bytes of the directory's offset in the end record, APPNOTE.TXT 4.3.16.
    archive = tmp_path / NAME
    content = bytearray(SMALL)
    content[-distance_from_end] ^= 8
    archive.write_bytes(content)

    with pytest.raises(errors.BuildError, match="corrupt"):
        verify_archive(archive, DATASET)


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
        assert "corrupt" in complaint
    shutil.rmtree(folder)
