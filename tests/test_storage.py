import threading

import pyarrow as pa
import pytest
from object_store import ObjectStore

from pipelines import errors, resume
from pipelines.storage import BUILD_DIR, Storage, is_remote


@pytest.fixture(params=["local", "remote"])
def storage(request, tmp_path):
    if request.param == "local":
        storage = Storage(str(tmp_path / "out"))
    else:
        ObjectStore.folder = tmp_path
        storage = Storage("store://bucket/out")
    storage.make_folders()
    return storage


def write(storage, name, content):
    with storage.create(name) as file:
        file.write(content)


def test_urls_are_remote_and_paths_are_not():
    assert is_remote("gs://bucket/folder")
    assert not is_remote("data/oct")
    assert Storage("gs://bucket/out/").path("manifest.json") == "gs://bucket/out/manifest.json"


def test_a_file_is_read_as_it_was_written(storage):
    write(storage, "file", b"content")
    assert storage.read("file") == b"content"
    assert storage.size("file") == 7
    assert storage.exists("file")


def test_a_compressed_file_is_not_unpacked_on_the_way(storage):
    write(storage, "file.gz", b"\x1f\x8b no gzip at all")
    assert storage.read("file.gz") == b"\x1f\x8b no gzip at all"
    assert storage.size("file.gz") == 17


def test_a_file_that_is_not_there_has_no_size_and_cannot_be_read(storage):
    assert storage.size("file") is None
    assert not storage.exists("file")
    with pytest.raises(FileNotFoundError):
        storage.read("file")


def test_names_are_those_of_one_folder_sorted(storage):
    assert storage.names(BUILD_DIR) == []
    for name in ("b", "a", f"{BUILD_DIR}/c"):
        write(storage, name, b"")
    assert [name for name in storage.names() if name != BUILD_DIR] == ["a", "b"]
    assert storage.names(BUILD_DIR) == ["c"]
    assert Storage(storage.path("nowhere")).names() == []


def test_many_files_are_read_in_their_order(storage):
    names = [f"part-{index}" for index in range(60)]
    for name in names:
        write(storage, name, name.encode())

    assert list(storage.map(storage.read, names)) == [name.encode() for name in names]


def test_an_error_in_one_of_many_reads_is_raised_in_its_place(storage):
    write(storage, "there", b"x")

    contents = storage.map(storage.read, ["there", "not there"])

    assert next(contents) == b"x"
    with pytest.raises(FileNotFoundError):
        next(contents)


def test_small_files_of_a_store_are_waited_for_together(tmp_path):
    together = threading.Barrier(4, timeout=20)

    def read(name: str) -> str:
        together.wait()
        return name

    assert list(Storage("store://bucket/out").map(read, "abcdefgh")) == list("abcdefgh")


def test_deleting_passes_over_what_is_not_there(storage):
    write(storage, "file", b"")
    storage.delete(["file", "never"])
    assert not storage.exists("file")
    storage.delete([])


def test_a_finished_build_leaves_nothing_of_its_own(storage):
    write(storage, "file", b"")
    write(storage, f"{BUILD_DIR}/plan", b"")
    storage.delete_build_dir()
    assert storage.names(BUILD_DIR) == []
    assert storage.exists("file")


def test_a_failed_write_leaves_no_file_and_keeps_the_old_one(tmp_path):
    storage = Storage(str(tmp_path))
    storage.make_folders()
    write(storage, "file", b"old")

    def fail():
        with storage.create("file") as file:
            file.write(b"new")
            raise OSError("no room")

    with pytest.raises(OSError, match="no room"):
        fail()
    assert storage.read("file") == b"old"
    assert storage.names(BUILD_DIR) == []


def test_arrow_reads_what_was_written(storage):
    table = pa.table({"number": [1, 2, 3]})
    with storage.create("file") as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table)
    with storage.open_arrow("file") as file:
        assert pa.ipc.open_file(file).read_all() == table


def test_a_store_that_beam_cannot_reach_is_a_clear_error():
    with (
        pytest.raises(errors.UserError, match="--output nostore://bucket/out"),
        resume.locked(Storage("nostore://bucket/out")),
    ):
        pass
