"""Images in a zip: what is read, what is refused, and what is left out."""

import contextlib
import itertools
import re
import stat
import struct
import unicodedata
import zipfile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from image_files import jpeg, write_zip
from source_files import FIRST, TREE, list_input, read_input, upload, write_input

from pipelines import errors
from pipelines.listing.refs import iterate_refs


def assert_refused(path, message):
    with pytest.raises(errors.UserError, match=message):
        list_input(path)


@pytest.mark.parametrize(
    "kind", ["zip", "deflated.zip", "folder", "zip on a store", "folder on a store"]
)
def test_every_file_is_read_as_it_was_written_and_a_change_ends_the_build(tmp_path, kind, s3):
    place, container = write_input(tmp_path, kind), kind.split()[0]
    assert read_input(place) == TREE
    source, listing = list_input(place)
    what = "directory" if container == "folder" else "archive"
    assert source.describe() == {"kind": what, "name": f"scans.{container}"}

    ref = next(ref for ref in iterate_refs(listing.table) if ref.path == FIRST)
    (tmp_path / "new").mkdir()
    changed = {**TREE, FIRST: TREE[FIRST][::-1]}
    new = write_input(tmp_path / "new", container, changed)
    if kind.endswith("store"):
        upload(new, place)
    elif kind == "folder":
        (place / FIRST).write_bytes(changed[FIRST])
    else:
        place.write_bytes(new.read_bytes()[: -1 if kind == "zip" else None])
    message = rf"{re.escape(str(place))}.* changed since .*--overwrite"
    with source.open() as reader:
        with pytest.raises(errors.MessageError, match=message):
            reader.read(ref.member)
        with pytest.raises(errors.MessageError, match=message):
            reader.open(ref.member).read(9)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("scans.zip", b"PK" + bytes(20_000), "not a complete zip"),
        ("scans", jpeg(), "not a complete zip"),
        ("scans.csv", b"path,label", "not a complete zip.* --labels"),
        ("scans.tar.gz", b"\x1f\x8b", "an archive: unpack it"),
        ("scans.zip.001", b"PK\3\4", "split into parts.* > NAME.zip"),
        ("scans.z01", b"PK\7\x08", "split into parts.*zip -s 0"),
    ],
)
def test_a_file_that_is_no_zip_is_named_with_what_to_do(tmp_path, name, content, message):
    path = tmp_path / name
    path.write_bytes(content)
    assert_refused(path, message)


# ---- zip


class Stream:
    """A file that cannot go back, as a pipe: a zip has sizes behind its members then."""

    def __init__(self, file):
        self.write, self.flush = file.write, file.flush


@pytest.mark.parametrize("kind", ["streamed", "zip64"])
def test_a_zip_of_any_writer_with_names_of_any_script_is_read(tmp_path, kind):
    names, path = itertools.cycle(["a", "ä", "ä" * 200]), tmp_path / "a"
    files = {path.replace("-1.", f"-{next(names)}."): content for path, content in TREE.items()}
    with path.open("wb") as file:
        target = Stream(file) if kind == "streamed" else file
        with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, content in files.items():
                with archive.open(name, "w", force_zip64=kind == "zip64") as member:
                    member.write(content)
    assert read_input(path) == files


def central_entry(data, name):
    """Returns where a member's entry in the zip's central directory begins."""
    # APPNOTE.TXT 4.3.12: the name follows 46 bytes that begin with this signature.
    place = data.index(b"PK\1\2")
    while data[place + 46 : place + 46 + len(name)] != name.encode():
        place = data.index(b"PK\1\2", place + 1)
    return place


def patched(path, offset, form, value):
    """Returns a zip in which a field of one member's central entry has another value."""
    data = bytearray(path.read_bytes())
    struct.pack_into(form, data, central_entry(data, FIRST) + offset, value)
    return data


# Offsets in a central entry, from APPNOTE.TXT 4.3.12.
FLAGS, METHOD, CRC, STORED_SIZE, SIZE = 8, 10, 16, 20, 24
COMMENT_LENGTH, MODE, OFFSET = 32, 38, 42


@pytest.mark.parametrize(
    ("offset", "form", "value", "reason"),
    [
        (MODE, "<I", (stat.S_IFLNK | 0o777) << 16, "link"),
        (CRC, "<I", 12345, "unreadable_member"),
        (SIZE, "<I", 5, "unreadable_member"),
        (SIZE, "<I", 10**6, "unreadable_member"),
        (SIZE, "<I", 2**32 - 2, "file_too_large"),
        (STORED_SIZE, "<I", 3, "unreadable_member"),
        (STORED_SIZE, "<I", 2**32 - 2, "file_too_large"),
    ],
)
def test_a_hostile_entry_of_a_zip_is_a_reject_and_the_others_are_read(
    tmp_path, offset, form, value, reason
):
    path = write_input(tmp_path, "deflated.zip")
    path.write_bytes(patched(path, offset, form, value))
    assert read_input(path) == {**TREE, FIRST: reason}


def with_long_comment(path):
    """Gives an entry of a zip a comment that covers all entries behind it."""
    data, name = bytearray(path.read_bytes()), list(TREE)[5]
    place = central_entry(data, name)
    rest = len(data) - 22 - place - 46 - len(name)
    struct.pack_into("<H", data, place + COMMENT_LENGTH, rest)
    return data


def not_utf8(path):
    files = {**TREE, "train/CNV/ä.jpeg": b"1"}
    return write_zip(path, files).read_bytes().replace("ä".encode(), b"\xff\xfe")


@pytest.mark.parametrize(
    "change",
    [
        lambda path: 2 * path.read_bytes(),
        lambda path: b"#!/bin/sh\n" + path.read_bytes(),
        lambda path: path.read_bytes()[:-1],
        lambda path: patched(path, OFFSET, "<I", 10_000),
        lambda path: patched(path, METHOD, "<H", 12),
        lambda path: patched(path, FLAGS, "<H", 1),
        with_long_comment,
        not_utf8,
    ],
)
def test_an_archive_that_may_lack_members_or_has_an_unread_method_is_refused(tmp_path, change):
    path = write_input(tmp_path, "zip")
    path.write_bytes(change(path))
    assert_refused(path, r"scans\.zip is not a complete zip")


# ---- names


class _Named(zipfile.ZipInfo):
    """A member whose name is stored as Latin-1, which has all bytes, without the flag of UTF-8."""

    def _encodeFilenameFlags(self):  # noqa: N802 - overrides a method of zipfile
        return self.filename.encode("latin-1"), 0


def zip_named(path, names):
    """Writes a zip with these bytes as names, without the flag."""
    with zipfile.ZipFile(path, "w") as archive:
        for place, name in enumerate(names):
            archive.writestr(_Named(name.decode("latin-1")), bytes([place]))
    return path


@pytest.mark.parametrize("form", ["NFC", "NFD"])
def test_names_of_a_zip_without_its_flag_are_utf_8(tmp_path, form):
    names = [unicodedata.normalize(form, f"Œdème {number}/1.png") for number in range(3)]
    path = zip_named(tmp_path / "scans.zip", [name.encode() for name in names])
    assert read_input(path) == {name: bytes([k]) for k, name in enumerate(names)}


# ---- damage


@pytest.mark.slow
@settings(max_examples=max(300, settings().max_examples))
@given(place=st.integers(0, 10**6), damage=st.binary(min_size=1, max_size=8), is_cut=st.booleans())
def test_a_damaged_zip_is_refused_or_each_file_is_read_as_it_was_or_a_reject(
    tmp_path_factory, place, damage, is_cut
):
    path = write_input(tmp_path_factory.mktemp("zip"), "deflated.zip")
    content = path.read_bytes()
    place = place % len(content)
    rest = b"" if is_cut else content[place + len(damage) :]
    path.write_bytes(content[:place] + damage + rest)
    with contextlib.suppress(errors.UserError, errors.BuildError):
        for found in read_input(path).values():
            assert isinstance(found, str) or found in TREE.values()
