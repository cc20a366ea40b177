"""The worker processes of this machine."""

import dataclasses

import odd_source
import pytest
from builds import prepare
from image_files import scan_tree, write_tree

from pipelines import errors
from pipelines.shards import write

TEN_IMAGES = scan_tree({"train": 5}, classes=("CNV", "NORMAL"))


def write_shards(folder, oddity, *, tree=TEN_IMAGES, num_shards=10, num_workers=2):
    """Has workers write shards (by default, ten of an image each), reading in an odd way.

    Returns:
        The folder of what was noted, `folder / "notes"`; the shards are in `folder / "out"`.
    """
    scans = write_tree(folder / "scans", tree)
    notes = folder / "notes"
    notes.mkdir()
    with prepare(scans, folder / "out", f"--num_shards={num_shards}") as job:
        source = odd_source.OddSource(scans, oddity=oddity, notes=notes)
        build = dataclasses.replace(job.build, source=source)
        write.write_in_processes(build, job.todo, num_workers)
    return notes


def num_shards(folder):
    return len(list((folder / "out").glob("*.tfrecord")))


def test_a_worker_that_is_done_early_gets_what_is_left(tmp_path):
    write_shards(tmp_path, odd_source.wait_for_the_others)
    assert num_shards(tmp_path) == 10


def test_the_first_error_ends_the_job_and_the_rest_is_not_begun(tmp_path):
    with pytest.raises(errors.BuildError, match=r"\.jpeg is gone$"):
        write_shards(tmp_path, odd_source.fail)
    assert 1 <= len(list((tmp_path / "notes").iterdir())) <= 2
    assert num_shards(tmp_path) == 0


def test_a_worker_that_dies_is_an_error_that_says_how_to_go_on(tmp_path):
    # On a busy machine Python may not know the exit code yet.
    pattern = r"worker process died( \(exit code -9\))?, most likely because the memory was full"
    with pytest.raises(errors.BuildError, match=pattern) as raised:
        write_shards(tmp_path, odd_source.die)
    assert "--direct_num_workers=1" in str(raised.value)


def test_a_worker_has_imported_neither_an_engine_nor_what_trains(tmp_path):
    modules = (write_shards(tmp_path, odd_source.list_modules) / "modules").read_text().split()
    assert "pyarrow" in modules
    assert not set(modules) & {"apache_beam", "grpc", "tensorflow", "keras", "train"}
