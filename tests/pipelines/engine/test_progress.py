import re

from pipelines.engine import launch
from pipelines.planning.plan import ShardTask
from tfrecord_io.format.manifest import sidecar_name
from tfrecord_io.stores.folder import Folder

TASKS = (ShardTask(0, "train", 0, 2, 30), ShardTask(1, "train", 1, 2, 20))


def test_the_bar_counts_images_of_finished_shards_and_ends_full(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(launch, "_LOCAL_SECONDS", 0.01)
    storage = Folder(str(tmp_path))
    storage.make_build_dir()
    with launch.progress_bar(storage, TASKS, 50):
        storage.write(sidecar_name(TASKS[0].shard_name), b"{}")
        err = ""
        while "80/100" not in err:
            err += capsys.readouterr().err
    err += capsys.readouterr().err
    counts = re.findall(r"(\d+)/(\d+) \[", err)
    assert (counts[0], counts[-1]) == (("50", "100"), ("100", "100"))
