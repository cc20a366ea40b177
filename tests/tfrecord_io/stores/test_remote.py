"""Ranges, listings and uploads on S3 and Google Cloud Storage."""

import contextlib
import json
import os
import re

import pytest
from image_files import write_tree
from s3_server import BUCKET, KEY_ID, SECRET_KEY

from tfrecord_io.stores import remote
from tfrecord_io.terminal.errors import StoreError, UserError

CONTENT = bytes(range(256)) * 40
# Every character that a shell, a glob or a URL takes for something else.
ODD_NAME = "a [1] *?+%20&=#é~.jpeg"


@pytest.fixture(params=["s3", "gs"])
def folder(request, tmp_path):
    """A URL below which files can be written."""
    request.getfixturevalue(request.param)
    return f"{request.param}://{BUCKET}/{tmp_path.name}"


def write(url, content):
    with remote.create(url) as file:
        file.write(content)


# ---- stores


@pytest.mark.parametrize("content", [b"", CONTENT * 1000], ids=["empty", "ten MB"])
def test_a_file_is_uploaded_whole_and_a_range_is_exactly_what_was_asked_for(folder, content):
    write(f"{folder}/file", content)
    size = len(content)
    assert remote.describe(f"{folder}/file").size == size
    assert remote.read_version(f"{folder}/file")[0] == content
    for start, length in ((100, 50), (size - 3, 30)) if content else ():
        assert remote.read(f"{folder}/file", start, length) == content[start : start + length]


def test_a_write_that_fails_leaves_what_was_there(folder):
    def fail():
        with remote.create(f"{folder}/file") as file:
            file.write(CONTENT)
            raise OSError("no room")

    write(f"{folder}/file", b"old")
    with pytest.raises(OSError, match="no room"):
        fail()
    assert remote.read_version(f"{folder}/file")[0] == b"old"


def test_characters_of_a_pattern_stand_for_themselves(folder):
    inside = f"{folder}/scans [1]*"
    url = f"{inside}/{ODD_NAME}"
    write(url, b"odd")
    write(f"{folder}/scans 1/other", b"not matched")
    assert [file.url for file in remote.list_files(inside, recursive=True)] == [url]
    # `scans 1` is a folder, not the beginning of a name.
    assert remote.list_files(f"{folder}/scans", recursive=True) == []
    write(f"{folder}/b", b"1")
    assert [file.url for file in remote.list_files(folder, recursive=False)] == [f"{folder}/b"]
    assert remote.read_version(url)[0] == b"odd"
    remote.delete(url)
    remote.delete(f"{folder}/never")
    assert remote.list_files(inside, recursive=True) == []
    for read, *more in ((remote.describe,), (remote.read, 0, 1), (remote.read_version,)):
        with pytest.raises(FileNotFoundError, match=re.escape(url)):
            read(url, *more)


def test_an_object_that_stands_for_a_folder_is_not_a_file_and_an_odd_name_is_named(s3):
    for key in ("marked/", "marked/train/", "marked/train/CNV/"):
        s3.put(key, b"")
    write(f"s3://{BUCKET}/marked/train/CNV/a", b"1")
    write(f"s3://{BUCKET}/marked/train/empty", b"")
    found = remote.list_files(f"s3://{BUCKET}/marked", recursive=True)
    names = {file.url.rpartition("marked/")[2] for file in found}
    assert names == {"train/CNV/a", "train/empty"}
    s3.put("strange/a//b", b"1")
    with pytest.raises(StoreError, match=r"cannot use s3://scans/strange: .*a//b"):
        remote.list_files(f"s3://{BUCKET}/strange", recursive=True)


def test_a_file_that_changed_is_not_read_for_the_one_that_was_looked_up_or_listed(
    folder, monkeypatch
):
    monkeypatch.setattr(remote, "NUM_ATTEMPTS", 2)
    url = f"{folder}/changing"
    write(url, b"one")
    (found,) = remote.list_files(folder, recursive=True)
    assert found == remote.describe(url)
    assert remote.read(url, 0, 3, found.mark) == b"one"
    assert remote.read_version(url, found.size, found.version)[0] == b"one"
    # Within the same second, and of the same length.
    write(url, b"two")
    for read, *more in (
        (remote.read, 0, 3, found.mark),
        (remote.read_version, found.size, found.version),
    ):
        with pytest.raises(StoreError, match="changing changed since it was first read"):
            read(url, *more)
    remote.delete(url)
    with pytest.raises(StoreError, match="changing is missing, though it was there before"):
        remote.read(url, 0, 3, found.mark)


def test_a_file_replaces_only_the_version_that_was_seen(folder):
    url = f"{folder}/state"
    first = remote.replace(url, b"one", None)
    second = remote.replace(url, b"two", first)
    assert remote.read_version(url)[0] == b"two"
    for seen in (None, first):
        # As after an attempt that succeeded, and whose answer was lost.
        assert remote.replace(url, b"two", seen)["e_tag"] == second["e_tag"]
        with pytest.raises(StoreError, match="state changed") as raised:
            remote.replace(url, b"three", seen)
        assert raised.value.cause == "changed"
    remote.delete(url)
    with pytest.raises(StoreError, match="state changed"):
        remote.replace(url, b"three", second)


@pytest.fixture
def impatient(monkeypatch):
    """Gives a server that fails little time."""
    monkeypatch.setattr(remote, "SILENT_SECONDS", 1)
    monkeypatch.setattr(remote, "RETRY_SECONDS", 0.5)
    remote.open_store.cache_clear()
    yield
    remote.open_store.cache_clear()


def test_a_bucket_that_is_not_there_is_a_clear_error(s3):
    for use in (
        lambda: write("s3://nowhere/file", b"1"),
        lambda: remote.read("s3://nowhere/file", 0, 1),
        lambda: remote.list_files("s3://nowhere/file", recursive=True),
    ):
        with pytest.raises(StoreError, match=r"cannot use s3://nowhere/file: .*NoSuchBucket"):
            use()
    with s3.failing("denied"), pytest.raises(StoreError, match=r"key kept: Access Denied"):
        remote.delete(f"s3://{BUCKET}/kept")


def without_settings(monkeypatch, home, **variables):
    """Leaves the settings of no store but some variables, and another home."""
    for name in [name for name in os.environ if name.startswith(("AWS_", "GOOGLE_"))]:
        monkeypatch.delenv(name)
    for name, value in {"HOME": str(home), **variables}.items():
        monkeypatch.setenv(name, value)
    remote.open_store.cache_clear()


@pytest.mark.parametrize(
    ("variables", "error", "message"),
    [
        ({"AWS_ENDPOINT_URL_S3": "http://127.0.0.1:9", "AWS_SKIP_SIGNATURE": "true"},
         StoreError, r"cannot use s3://b/f: .*127\.0\.0\.1:9"),
        ({"AWS_PROFILE": "nobody"}, UserError, "cannot use s3://b: .*nobody"),
    ],
)  # fmt: skip
def test_settings_that_cannot_be_used_are_clear_errors(
    impatient, monkeypatch, tmp_path, variables, error, message
):
    without_settings(monkeypatch, tmp_path, **variables)
    with pytest.raises(error, match=message):
        remote.read("s3://b/f", 0, 1)


@pytest.mark.parametrize("profile", ["default", "clinic"])
def test_keys_in_the_files_of_the_aws_tools_are_found(s3, tmp_path, monkeypatch, profile):
    keys = f"aws_access_key_id = {KEY_ID}\naws_secret_access_key = {SECRET_KEY}\n"
    write_tree(tmp_path, {".aws/credentials": f"[{profile}]\n{keys}".encode()})
    settings = {"AWS_ENDPOINT_URL_S3": s3.endpoint, "AWS_PROFILE": profile}
    without_settings(monkeypatch, tmp_path, **settings)
    write(f"s3://{BUCKET}/file", b"signed")
    assert remote.read_version(f"s3://{BUCKET}/file")[0] == b"signed"


@pytest.mark.slow
def test_the_file_of_googles_tools_is_used(tmp_path, monkeypatch):
    pytest.importorskip("google.auth", reason="needs pip install 'apache-beam[gcp]'")
    keys = {"type": "authorized_user", "client_id": "a", "client_secret": "b", "refresh_token": "c"}
    place = ".config/gcloud/application_default_credentials.json"
    write_tree(tmp_path, {place: json.dumps(keys).encode()})
    without_settings(monkeypatch, tmp_path, NO_GCE_CHECK="true")
    opened = []
    monkeypatch.setattr(remote.obstores, "from_url", lambda root, **given: opened.append(given))
    with contextlib.suppress(StoreError):  # the address leads to no server
        remote.list_files("gs://bucket/a", recursive=True)
    assert opened[0]["credential_provider"].credentials.refresh_token == "c"


def test_a_process_that_was_forked_after_a_store_was_opened_is_printed_so_instead_of_waiting(
    s3, monkeypatch
):
    assert remote.list_files(f"s3://{BUCKET}/none", recursive=True) == []
    monkeypatch.setattr(os, "getpid", lambda: 1)
    with pytest.raises(RuntimeError, match="open stores after the fork"):
        remote.list_files(f"s3://{BUCKET}/none", recursive=True)


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("cut", "body error"),
        ("silent", "error sending request"),
        ("short", "the server sent 99 bytes instead of 100"),
    ],
)
def test_a_server_that_fails_is_a_clear_error_in_time(s3, impatient, fault, message):
    write(url := f"s3://{BUCKET}/a.zip", CONTENT)
    with (
        s3.failing(fault),
        pytest.raises(StoreError, match=f"cannot (use|read) {url}: .*{message}"),
    ):
        remote.read(url, 5, 100)
