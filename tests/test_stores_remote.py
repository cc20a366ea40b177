"""Ranges, listings and uploads on servers of S3 and GCS, and on a file system Beam is taught."""

import io
import zipfile
from collections.abc import Iterator

import gcs_server
import pytest
from object_store import ObjectStore
from s3_server import BUCKET, S3Server, running_s3

from pipelines import errors
from pipelines.running.engine import make_pipeline
from pipelines.stores import remote

pytest.importorskip("moto", reason="the S3 server is moto's: pip install -e '.[stores]'")

CONTENT = bytes(range(256)) * 40


@pytest.fixture(scope="module")
def s3() -> Iterator[S3Server]:
    with running_s3() as server:
        yield server


@pytest.fixture(params=["s3", *gcs_server.SERVERS, "store"])
def folder(request, tmp_path) -> Iterator[str]:
    """A URL below which files can be written."""
    # Making a pipeline tells Beam's file systems the flags.
    if request.param == "store":
        ObjectStore.folder = tmp_path
        (tmp_path / "bucket").mkdir()
        yield "store://bucket"
    elif request.param == "s3":
        make_pipeline(request.getfixturevalue("s3").flags)
        yield f"s3://{BUCKET}/{tmp_path.name}"
    else:
        if not gcs_server.is_installed(request.param):
            pytest.skip(gcs_server.how_to_install(request.param))
        with gcs_server.running_gcs(request.param):
            make_pipeline([])
            yield f"gs://{gcs_server.BUCKET}/{tmp_path.name}"


def write(url: str, content: bytes) -> None:
    with remote.create(url) as file:
        file.write(content)


def test_a_range_is_exactly_what_was_asked_for(folder):
    write(f"{folder}/file", CONTENT)
    store = remote.open_store(folder)

    assert store.describe(f"{folder}/file")[0] == len(CONTENT)
    assert store.read(f"{folder}/file", 100, 50) == CONTENT[100:150]
    assert store.read(f"{folder}/file", len(CONTENT) - 3, 3) == CONTENT[-3:]


def test_only_the_asked_bytes_are_fetched(s3):
    make_pipeline(s3.flags)
    write(f"s3://{BUCKET}/exact", CONTENT)
    s3.forget()

    remote.open_store("s3://").read(f"s3://{BUCKET}/exact", 100, 50)

    assert s3.bytes_sent == 50


def test_a_remote_file_is_sought_like_a_local_one(folder):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a", CONTENT)
        archive.comment = b"from the clinic"
    write(f"{folder}/a.zip", file.getvalue())
    size = len(file.getvalue())

    with (
        remote.RangeFile(remote.open_store(folder), f"{folder}/a.zip", size) as ranges,
        zipfile.ZipFile(ranges) as archive,
    ):
        assert archive.read("a") == CONTENT
    with pytest.raises(OSError, match="cannot seek to -1"):
        remote.RangeFile(remote.open_store(folder), "x://y", 5).seek(-6, io.SEEK_END)


@pytest.mark.parametrize("content", [b"", b"1", CONTENT * 1000], ids=["empty", "byte", "ten MB"])
def test_a_file_is_uploaded_whole(folder, content):
    write(f"{folder}/file", content)

    store = remote.open_store(folder)
    assert store.describe(f"{folder}/file")[0] == len(content)
    if content:
        assert store.read(f"{folder}/file", 0, len(content)) == content


def test_a_write_that_fails_leaves_what_was_there(folder):
    write(f"{folder}/file", b"old")

    def fail():
        with remote.create(f"{folder}/file") as file:
            file.write(CONTENT)
            raise OSError("no room")

    with pytest.raises(OSError, match="no room"):
        fail()
    assert remote.open_store(folder).read(f"{folder}/file", 0, 3) == b"old"


def test_files_are_listed_with_or_without_the_folders_in_the_folder(folder):
    for name in ("b", "a/x", "a/y z"):
        write(f"{folder}/{name}", name.encode())

    store = remote.open_store(folder)

    found = store.list(folder, recursive=True)
    assert sorted((file.url, file.size) for file in found) == [
        (f"{folder}/a/x", 3), (f"{folder}/a/y z", 5), (f"{folder}/b", 1),
    ]  # fmt: skip
    assert [file.url for file in store.list(folder, recursive=False)] == [f"{folder}/b"]
    assert store.list(f"{folder}/none", recursive=True) == []


def test_files_are_deleted_and_those_that_are_gone_passed_over(folder):
    for name in ("a", "b", "c"):
        write(f"{folder}/{name}", b"1")
    store = remote.open_store(folder)

    store.delete([f"{folder}/a", f"{folder}/never", f"{folder}/b"])

    assert [file.url for file in store.list(folder, recursive=True)] == [f"{folder}/c"]


def test_a_file_that_is_not_there_is_not_found(folder):
    store = remote.open_store(folder)
    with pytest.raises(FileNotFoundError):
        store.describe(f"{folder}/none")
    with pytest.raises(FileNotFoundError):
        store.read(f"{folder}/none", 0, 1)


def keeps_versions(request: pytest.FixtureRequest) -> bool:
    return request.node.callspec.params["folder"] in ("s3", "fake-gcs-server")


def test_a_file_that_changed_is_not_read_for_the_one_that_was_looked_up(folder, request):
    if not keeps_versions(request):
        pytest.skip("this store does not tell versions apart")
    url = f"{folder}/changing"
    store = remote.open_store(url)
    write(url, b"one")
    _, mark = store.describe(url)
    assert store.read(url, 0, 3, mark) == b"one"
    write(url, b"two")

    with pytest.raises(errors.BuildError, match="changed since the build began"):
        store.read(url, 0, 3, mark)


def test_a_file_that_changed_is_not_read_for_the_one_that_was_listed(folder, request):
    if not keeps_versions(request):
        pytest.skip("this store does not tell versions apart")
    url = f"{folder}/changing"
    store = remote.open_store(url)
    write(url, b"one")
    (found,) = store.list(folder, recursive=True)
    assert store.read(url, 0, 3, found.mark) == b"one"
    # S3's times are whole seconds: it is as if the listing were older than the file.
    mark = found.mark - 2_000_000_000 if folder.startswith("s3") else found.mark
    write(url, b"two")

    with pytest.raises(errors.BuildError, match="changed since the build began"):
        store.read(url, 0, 3, mark)


@pytest.mark.parametrize("is_direct", [True, False], ids=["direct", "by the client's session"])
def test_a_range_is_read_without_a_call_of_the_client(s3, monkeypatch, is_direct):
    make_pipeline(s3.flags)
    url = f"s3://{BUCKET}/quick"
    write(url, CONTENT)
    store = remote.open_store(url)
    mark = store.describe(url)[1]
    if not is_direct:
        monkeypatch.setattr(store, "_is_direct", lambda address: False)
    assert store._is_direct(f"http://{BUCKET}/quick") == is_direct
    monkeypatch.setattr(store, "_call", None)

    assert store.read(url, 5, 100, mark) == CONTENT[5:105]


def test_a_client_that_keeps_its_settings_elsewhere_is_left_to_itself(s3, monkeypatch):
    make_pipeline(s3.flags)
    url = f"s3://{BUCKET}/other"
    write(url, CONTENT)
    store = remote.open_store(url)
    monkeypatch.delattr(store._client._endpoint.http_session, "_cert_file")

    assert not store._is_direct(f"http://{BUCKET}/other")
    assert store.read(url, 5, 100) == CONTENT[5:105]


@pytest.mark.parametrize("server", gcs_server.SERVERS)
def test_a_range_on_google_cloud_storage_is_read_without_a_call_of_the_client(server, monkeypatch):
    if not gcs_server.is_installed(server):
        pytest.skip(gcs_server.how_to_install(server))
    with gcs_server.running_gcs(server):
        make_pipeline([])
        url = f"gs://{gcs_server.BUCKET}/quick"
        write(url, CONTENT)
        store = remote.open_store(url)
        mark = store.describe(url)[1]
        monkeypatch.setattr(store, "_clear_errors", None)
        assert store.read(url, 5, 100, mark) == CONTENT[5:105]


@pytest.mark.parametrize(
    ("name", "value", "is_direct"),
    [
        ("HTTPS_PROXY", "http://proxy.example:3128", False),
        ("HTTP_PROXY", "http://proxy.example:3128", True),
        ("GOOGLE_API_USE_CLIENT_CERTIFICATE", "true", False),
        ("GOOGLE_API_USE_CLIENT_CERTIFICATE", "false", True),
    ],
)
def test_the_client_is_left_its_proxies_and_certificates(monkeypatch, name, value, is_direct):
    for proxy in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"):
        monkeypatch.delenv(proxy, raising=False)
        monkeypatch.delenv(proxy.lower(), raising=False)
    monkeypatch.setenv(name, value)
    assert remote._is_direct("https://storage.example") == is_direct


def test_where_a_proxy_stands_between_only_the_client_knows_the_way(s3, monkeypatch):
    make_pipeline(s3.flags)
    store = remote.open_store(f"s3://{BUCKET}/")
    proxies = store._client._endpoint.http_session._proxy_config._proxies
    monkeypatch.setitem(proxies, "http", "http://proxy.example:3128")
    assert not store._is_direct(f"http://{BUCKET}.example/quick")
    assert store._is_direct(f"https://{BUCKET}.example/quick")


@pytest.mark.parametrize("num_cuts", [1, 3])
def test_an_answer_that_is_cut_off_is_asked_for_again(s3, num_cuts):
    make_pipeline(s3.flags)
    url = f"s3://{BUCKET}/cut"
    write(url, CONTENT)

    with s3.failing(answers_to_cut=num_cuts):
        assert remote.open_store(url).read(url, 5, 100) == CONTENT[5:105]


def test_answers_that_are_always_cut_off_are_a_clear_error(s3):
    make_pipeline(s3.flags)
    url = f"s3://{BUCKET}/cut"
    write(url, CONTENT)

    with (
        s3.failing(answers_to_cut=100),
        pytest.raises(errors.BuildError, match=f"cannot use {url}: .*"),
    ):
        remote.open_store(url).read(url, 5, 100)


def test_a_server_that_ignores_ranges_gives_the_same_bytes(s3):
    make_pipeline(s3.flags)
    url = f"s3://{BUCKET}/whole"
    write(url, CONTENT)

    with s3.failing(ignores_ranges=True):
        assert remote.open_store(url).read(url, 5, 100) == CONTENT[5:105]


def test_a_file_that_is_not_deleted_is_named(s3):
    make_pipeline(s3.flags)

    with (
        s3.failing(refuses_deletes=True),
        pytest.raises(errors.BuildError, match=f"cannot delete s3://{BUCKET}/kept: Access Denied"),
    ):
        remote.open_store("s3://").delete([f"s3://{BUCKET}/kept"])


def test_an_upload_tells_how_far_it_is(folder):
    told: list[int] = []
    store = remote.open_store(folder)

    store.write(f"{folder}/file", io.BytesIO(CONTENT), told.append)

    assert sum(told) == len(CONTENT)


def test_a_bucket_that_is_not_there_is_a_clear_error(s3):
    make_pipeline(s3.flags)

    with pytest.raises(errors.BuildError, match=r"cannot use s3://nowhere/file: .*NoSuchBucket"):
        write("s3://nowhere/file", b"1")


def test_a_store_that_does_not_answer_is_a_clear_error():
    make_pipeline(["--s3_endpoint_url=http://127.0.0.1:9", "--s3_region_name=us-east-1",
                   "--s3_access_key_id=a", "--s3_secret_access_key=b"])  # fmt: skip

    with pytest.raises(errors.BuildError, match=r"cannot use s3://b/file: .*127\.0\.0\.1:9"):
        remote.open_store("s3://b").read("s3://b/file", 0, 1)


def test_settings_that_a_client_does_not_take_are_a_clear_error():
    make_pipeline(["--s3_endpoint_url=no-url", "--s3_region_name=us-east-1"])

    with pytest.raises(errors.UserError, match=r"cannot use s3://b: Invalid endpoint: no-url"):
        remote.open_store("s3://b")


def test_a_store_that_beam_does_not_know_is_named():
    with pytest.raises(errors.UserError, match="Beam knows no file system ftp://"):
        remote.open_store("ftp://server/file")
