"""The worker processes of this machine."""

import dataclasses

import odd_source
import pytest
from builds import prepare
from image_files import scan_tree, write_tree

from pipelines import errors
from pipelines.shards import write


def write_shards(folder, oddity):
    """Has two workers write ten shards of an image each, reading in an odd way.

    Returns:
        The folder of what was noted, `folder / "notes"`; the shards are in `folder / "out"`.
    """
    scans = write_tree(folder / "scans", scan_tree({"train": 5}, classes=("CNV", "NORMAL")))
    (notes := folder / "notes").mkdir()
    with prepare(scans, folder / "out", "--num_shards=10") as job:
        source = odd_source.OddSource(scans, oddity=oddity, notes=notes)
        write.write_in_processes(job.todo, dataclasses.replace(job.build, source=source), 2)
    return notes


def test_a_worker_that_is_done_early_gets_what_is_left(tmp_path):
    write_shards(tmp_path, odd_source.wait_for_the_others)
    assert len(list((tmp_path / "out").glob("*.tfrecord"))) == 10


def test_the_first_error_ends_the_job_and_the_rest_is_not_begun(tmp_path):
    with pytest.raises(errors.BuildError, match=r"\.jpeg is gone$"):
        write_shards(tmp_path, odd_source.fail)
    assert 1 <= len(list((tmp_path / "notes").iterdir())) <= 2
    assert not list((tmp_path / "out").glob("*.tfrecord"))


def test_a_worker_that_dies_is_an_error_that_says_how_to_go_on(tmp_path):
    with pytest.raises(errors.BuildError, match="--direct_num_workers=1"):
        write_shards(tmp_path, odd_source.die)
