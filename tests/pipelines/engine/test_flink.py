"""The build on a real Flink cluster of this machine: JobManager, TaskManagers, worker pool.

`make flink` says what it needs; where that is not there, the tests skip.
"""

import os
from pathlib import Path

import builds
import pytest
from image_files import scan_tree, scans_of

from scripts import flink_cluster

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

JOB_SERVER = Path(os.environ.get("FLINK_JOB_SERVER", flink_cluster.DEFAULT_JOB_SERVER))


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    try:
        started = flink_cluster.Cluster(tmp_path_factory.mktemp("flink"), JOB_SERVER)
    except flink_cluster.MissingPartError as error:
        pytest.skip(f"no Flink here: {error}")
    with started:
        yield started


many_scans = scans_of(
    lambda: scan_tree({"train": 200, "val": 3, "test": 5}, classes=("CNV", "DME", "NORMAL"))
)
# Many tasks, each of some work: when the first shard is there, most are still to come.
FLAGS = ("--num_shards=100", "--image_size=512")
local = builds.build_of("many_scans", *FLAGS)


@pytest.mark.parametrize("victim", ["task_manager", "worker_pool"])
def test_a_part_that_is_killed_in_mid_job_loses_and_doubles_nothing(
    cluster, many_scans, local, tmp_path, victim
):
    def num_finished():
        return len(list(output.glob("*-of-*.json")))  # the sidecars

    output = tmp_path / "dataset"
    words = builds.command(many_scans, output, *FLAGS, *cluster.beam_flags)
    with builds.started(words) as build:
        assert builds.wait_until(lambda: num_finished() > 0, build, 300)
        cluster.kill(victim)
        finished = num_finished()
        said, _ = build.communicate(timeout=500)
    assert 0 < finished < len(builds.shards_of(local))
    assert build.returncode == 0, said
    assert cluster.num_restarted_tasks > 0
    assert builds.shards_of(output) == builds.shards_of(local)
    assert not (output / ".build").exists()
