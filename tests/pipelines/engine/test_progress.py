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


def counts_shown(text):
    return [tuple(map(int, found)) for found in re.findall(r"(\d+)/(\d+) \[", text)]


def test_the_bar_counts_images_of_finished_shards_and_of_those_being_written(
    storage, tmp_path, capsys
):
    with launch.progress_bar(storage, TASKS, 50, STRIDE):
        finish(storage, TASKS[0])
        half = tmp_path / BUILD_DIR / f".{TASKS[1].shard_name}.0a1b.tmp"
        half.write_bytes(bytes(7 * STRIDE + 50))
        (tmp_path / BUILD_DIR / ".plan.arrow.0a1b.tmp").write_bytes(bytes(9 * STRIDE))
    shown = counts_shown(capsys.readouterr().err)
    assert (shown[0], shown[-1]) == ((50, 100), (87, 100))


@pytest.mark.parametrize("is_replaced", [False, True])
def test_the_bar_ends_full(storage, capsys, is_replaced):
    with launch.progress_bar(storage, TASKS, 0, STRIDE):
        for task in () if is_replaced else TASKS:
            finish(storage, task)
        if is_replaced:  # the dataset has taken the place of another one
            storage.delete([PLAN_JSON])
    assert counts_shown(capsys.readouterr().err)[-1] == (50, 50)
