import re

import pytest

from pipelines.engine import launch
from pipelines.planning.plan import ShardTask
from pipelines.stores.output_folder import PLAN_JSON
from tfrecord_io.stores.folder import BUILD_DIR, Folder

STRIDE = 100
TASKS = (ShardTask(0, "train", 0, 2, 30), ShardTask(1, "train", 1, 2, 20))


@pytest.fixture
def storage(tmp_path):
    storage = Folder(str(tmp_path))
    storage.make_build_dir()
    storage.write(PLAN_JSON, b"{}")
    return storage


def finish(storage, task):
    for name in (task.shard_name, task.shard_name.replace(".tfrecord", ".json")):
        storage.write(name, b"{}")


def test_images_are_counted_in_finished_shards_and_in_those_being_written(storage, tmp_path):
    assert launch._count_images(storage, TASKS, STRIDE) == 0
    finish(storage, TASKS[0])
    assert launch._count_images(storage, TASKS, STRIDE) == 30
    half = tmp_path / BUILD_DIR / f".{TASKS[1].shard_name}.0a1b.tmp"
    half.write_bytes(bytes(7 * STRIDE + 50))
    (tmp_path / BUILD_DIR / ".plan.arrow.0a1b.tmp").write_bytes(bytes(9 * STRIDE))
    assert launch._count_images(storage, TASKS, STRIDE) == 37


def counts_shown(text):
    return [tuple(map(int, found)) for found in re.findall(r"(\d+)/(\d+) \[", text)]


def test_the_bar_shows_images_done_before_and_now_and_ends_full(storage, capsys):
    with launch.progress_bar(storage, TASKS, 50, STRIDE):
        for task in TASKS:
            finish(storage, task)
    shown = counts_shown(capsys.readouterr().err)
    assert shown[0] == (50, 100)
    assert shown[-1] == (100, 100)


def test_the_bar_ends_full_where_the_dataset_has_taken_the_place_of_another_one(storage, capsys):
    with launch.progress_bar(storage, TASKS, 0, STRIDE):
        storage.delete([PLAN_JSON])
    assert counts_shown(capsys.readouterr().err)[-1] == (50, 50)
