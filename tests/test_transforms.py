import contextlib
import csv
import dataclasses
import functools
import hashlib
import io
import json
import operator
import threading
from pathlib import Path

import apache_beam as beam
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from apache_beam.runners.portability.fn_api_runner import FnApiRunner
from builds import IN_MEMORY, arguments, files_of
from image_files import encoded, grey_pixels, scan_tree, under, write_tree

from pipelines import errors
from pipelines.engine import transforms
from pipelines.engine.job import prepared, require_finished
from pipelines.listing.refs import iterate_refs
from pipelines.options import parse_options
from pipelines.planning import plan
from pipelines.shards import finish, write
from pipelines.shards.build import rows_name
from pipelines.shards.sidecar import Sidecar, find_finished
from pipelines.stores.output import BUILD_DIR
from tfrecord_io.decoding import preprocess
from tfrecord_io.manifest import Manifest
from tfrecord_io.rejects import Reject
from tfrecord_io.schema import image_key
from tfrecord_io.statistics import PixelStatistics

BAD = {"train/CNV/CNV-9-1.jpeg": b"", "test/DME/DME-9-1.jpeg": b"no image at all"}


@pytest.fixture(scope="module")
def scans(tmp_path_factory):
    files = {**scan_tree({"train": 5, "test": 2}), **BAD, "train/loose.png": b"?", "notes": b""}
    return write_tree(tmp_path_factory.mktemp("scans") / "scans", files)


@contextlib.contextmanager
def prepared_job(scans, output, *more):
    argv = arguments(scans, output, IN_MEMORY, "--max_reject_fraction=0.5", "--num_shards=3", *more)
    with prepared(parse_options(argv)) as job:
        yield job


@pytest.fixture
def job(scans, tmp_path):
    with prepared_job(scans, tmp_path / "out") as job:
        yield job


def write_all(job):
    with job.build.source.open() as reader:
        return [write.write_shard(job.build, task, reader, job.storage.create) for task in job.todo]


def planned_refs(job, task):
    with job.storage.open_arrow(plan.PLAN_FILE) as file:
        return list(iterate_refs(plan.read_task_refs(file, task, job.build.fingerprint)))


# ---- one shard


def test_a_shard_holds_the_planned_images_in_order_without_the_rejects(job):
    layout, build = job.build.layout, job.build
    for task, sidecar in zip(job.todo, write_all(job), strict=True):
        expected, rejected = b"", []
        with build.source.open() as reader:
            for ref in planned_refs(job, task):
                try:
                    image = preprocess.decode_image(reader.read(ref.member), build.preprocessing)
                except Reject as reject:
                    rejected.append((ref.source_path, reject.reason))
                    continue
                (label,) = build.label_kind.vectors([ref.label], build.label_names)
                expected += layout.encode_record(image.pixels, label, image_key(ref.path))
        assert job.storage.read(task.shard_name) == expected
        assert sidecar.num_bytes == len(expected)
        assert sidecar.sha256 == hashlib.sha256(expected).hexdigest()
        assert sidecar.num_examples == sum(sidecar.label_counts) == len(expected) / layout.stride
        assert [(r.source_path, r.reason) for r in sidecar.rejects] == rejected
        assert sidecar.num_examples + len(rejected) == sidecar.num_refs == task.num_refs


def test_the_sidecar_beside_a_shard_is_what_the_worker_returned(job):
    for task, sidecar in zip(job.todo, write_all(job), strict=True):
        text = job.storage.read(task.shard_name.replace(".tfrecord", ".json"))
        assert Sidecar.from_json(text) == sidecar


@pytest.mark.parametrize("text", ["", "null", "[]", "{}", '"x"', b"\xff", '{"label_counts": 1}'])
def test_something_else_is_no_sidecar(text):
    with pytest.raises(ValueError):  # noqa: PT011 - any message will do
        Sidecar.from_json(text)


def test_a_shard_has_the_same_bytes_each_time(job):
    first = write_all(job)
    before = files_of_output(job)
    assert write_all(job) == first
    assert files_of_output(job) == before


def files_of_output(job):
    return files_of(Path(job.storage.root))


def test_a_shard_written_by_two_workers_at_once_is_whole(job):
    expected = write_all(job)
    before = files_of_output(job)
    threads = [threading.Thread(target=write_all, args=[job]) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert files_of_output(job) == before
    assert find_finished(job.build, job.todo) == dict(enumerate(expected))


def test_rows_of_the_examples_table_describe_the_records(job):
    write_all(job)
    task = job.todo[0]
    with job.storage.open_arrow(rows_name(task)) as file:
        rows = pq.read_table(file).to_pylist()
    data, layout = job.storage.read(task.shard_name), job.build.layout
    slot = layout.features["key"]
    keys = [
        data[start + slot.offset : start + slot.offset + slot.length].decode()
        for start in range(0, len(data), layout.stride)
    ]
    assert [row["key"] for row in rows] == keys
    assert [row["row"] for row in rows] == list(range(len(rows)))
    by_path = {ref.source_path: ref for ref in planned_refs(job, task)}
    for row in rows:
        ref = by_path[row["path"]]
        assert (row["split"], row["shard"]) == (task.split, task.shard_name)
        assert (row["label"], row["patient"]) == (ref.label, ref.patient)
        assert (row["height"], row["width"], row["mode"]) == (20, 28, "L")
        assert (row["file_format"], row["file_bytes"]) == ("JPEG", ref.size)


def test_a_worker_with_another_pillow_refuses_to_mix_pixels(job):
    identity = {**job.build.identity, "decoder": {"pillow": "1.0", "libjpeg": "6"}}
    other = dataclasses.replace(job.build, identity=identity)
    with (
        job.build.source.open() as reader,
        pytest.raises(errors.BuildError, match=r"the launcher planned with .*'1\.0'"),
    ):
        write.write_shard(other, job.todo[0], reader, job.storage.create)


# ---- all of them, by Beam


def run(job, tasks=None, num_processes=None):
    with beam.Pipeline(runner=FnApiRunner()) as pipeline:
        (
            pipeline
            | beam.Create(job.todo if tasks is None else tasks)
            | transforms.WriteShards(job.build, num_processes)
            | transforms.FinishDataset(job.build, num_processes)
        )


def test_tasks_become_a_dataset(job):
    run(job)
    found = Manifest.load(job.storage.root)
    assert found.counts["examples"] == found.num_examples == 28
    assert found.counts["rejects"] == sum(found.rejects.values()) == 3
    assert found.rejects == {"empty": 1, "no_label": 1, "not_an_image": 1}
    assert found.counts["ignored"] == {"no_image_name": 1}
    assert found.label_names == ("CNV", "DME", "DRUSEN", "NORMAL")
    assert found.split("train").label_counts == (5, 5, 5, 5)
    assert found.split("test").label_counts == (2, 2, 2, 2)


@pytest.mark.parametrize("num_processes", [None, 2])
def test_a_task_that_comes_twice_does_no_harm(job, num_processes):
    run(job, [*job.todo, *job.todo], num_processes)
    assert Manifest.load(job.storage.root).num_examples == 28


def test_finished_shards_are_not_written_again(job):
    def inodes():
        return {p.name: p.stat().st_ino for p in Path(job.storage.root).glob("*.tfrecord")}

    write_all(job)
    before, content = inodes(), files_of_output(job)
    run(job)
    assert inodes() == before
    after = files_of_output(job)
    assert all(after[name] == content[name] for name in before)


def test_the_table_of_examples_is_in_the_order_of_the_shards(job):
    run(job)
    with job.storage.open_arrow("examples.parquet") as file:
        table = pq.read_table(file)
    assert table.schema.names == write.EXAMPLE_SCHEMA.names
    found = Manifest.load(job.storage.root)
    counts = [s.num_examples for split in found.splits.values() for s in split.shards]
    names = [s.name for split in found.splits.values() for s in split.shards]
    expected = [name for name, count in zip(names, counts, strict=True) for _ in range(count)]
    assert table["shard"].to_pylist() == expected
    assert len(set(table["key"].to_pylist())) == 28


def test_the_table_of_rejects_names_every_file_left_out_and_why(job):
    run(job)
    rows = list(csv.reader(io.StringIO(job.storage.read("rejects.csv").decode(), newline="")))
    assert rows[0] == ["path", "reason", "detail"]
    assert [row[:2] for row in rows[1:]] == [
        ["test/DME/DME-9-1.jpeg", "not_an_image"],
        ["train/CNV/CNV-9-1.jpeg", "empty"],
        ["train/loose.png", "no_label"],
    ]
    assert all(row[2] for row in rows[1:])


def count_again(output):
    """Returns the statistics that reading the train shards anew gives."""
    found = Manifest.load(output)
    parts = []
    for shard in found.split("train").shards:
        with (Path(output) / shard.name).open("rb") as file:
            parts.append(PixelStatistics.from_shard(file, found.layout))
    return functools.reduce(operator.add, parts)


def test_the_manifest_has_the_sums_over_the_train_splits_pixels(job):
    run(job)
    found = Manifest.load(job.storage.root)
    assert found.statistics == count_again(job.storage.root)
    assert found.statistics.num_pixels == 20 * 8 * 8


# ---- finishing


def test_shards_of_a_release_that_did_not_count_pixels_are_counted_when_finishing(job):
    write_all(job)
    for task in job.todo[::2]:
        path = Path(job.storage.path(task.shard_name.replace(".tfrecord", ".json")))
        content = json.loads(path.read_text())
        del content["statistics"]
        path.write_text(json.dumps(content))
    finish.finish_dataset(job.build)
    found = Manifest.load(job.storage.root)
    assert found.statistics == count_again(job.storage.root)


def test_without_a_train_split_there_are_no_sums(tmp_path):
    scans = write_tree(tmp_path / "scans", scan_tree({"test": 2}))
    with prepared_job(scans, tmp_path / "out") as job:
        write_all(job)
        finish.finish_dataset(job.build)
    assert Manifest.load(tmp_path / "out").statistics is None
    assert "statistics" not in json.loads((tmp_path / "out/manifest.json").read_text())


def test_a_train_split_of_rejects_alone_has_no_sums(tmp_path):
    files = {**scan_tree({"test": 2}), "train/CNV/1.png": b"x"}
    with prepared_job(write_tree(tmp_path / "scans", files), tmp_path / "out") as job:
        write_all(job)
        finish.finish_dataset(job.build)
    found = Manifest.load(tmp_path / "out")
    assert found.split("train").num_examples == 0
    assert found.statistics is None


def test_a_missing_shard_is_no_finished_dataset(job):
    write_all(job)
    job.storage.delete([job.todo[1].shard_name])
    with pytest.raises(errors.BuildError, match=f"{job.todo[1].shard_name} was written, but is"):
        finish.finish_dataset(job.build)
    assert not job.storage.exists("manifest.json")


@pytest.mark.parametrize("change", [{"num_files": 99}, {"copies": 1}, {"rejected_files": ()}])
def test_a_ledger_that_does_not_add_up_is_no_finished_dataset(job, change):
    write_all(job)
    with pytest.raises(errors.BuildError, match=r"the source has .* are accounted for"):
        finish.finish_dataset(dataclasses.replace(job.build, **change))
    assert not job.storage.exists("manifest.json")


def test_too_many_rejects_leave_the_evidence_and_no_manifest(job):
    write_all(job)
    finish.finish_dataset(dataclasses.replace(job.build, max_reject_fraction=0.09))
    message = finish.read_failure(job.storage)
    assert message.startswith("3 of 31 images were rejected (9.68%, allowed 9.00%): 1 ")
    assert "--max_reject_fraction" in message
    assert job.storage.exists("rejects.csv")
    assert not job.storage.exists("manifest.json")
    with pytest.raises(errors.BuildError, match="3 of 31 images were rejected"):
        require_finished(job)


def test_as_many_rejects_as_allowed_are_accepted(job):
    write_all(job)
    finish.finish_dataset(dataclasses.replace(job.build, max_reject_fraction=3 / 31))
    assert finish.read_failure(job.storage) is None
    require_finished(job)


def test_a_dataset_without_an_example_is_none_whatever_is_allowed(tmp_path):
    scans = write_tree(tmp_path / "scans", {"train/CNV/1.png": b"x", "train/DME/2.png": b""})
    with prepared_job(scans, tmp_path / "out", "--max_reject_fraction=1") as job:
        write_all(job)
        finish.finish_dataset(job.build)
        assert finish.read_failure(job.storage).startswith("all 2 images were rejected")
        assert not job.storage.exists("manifest.json")


def test_a_shard_all_of_whose_images_are_rejects_is_an_empty_file(tmp_path):
    files = {**scan_tree({"train": 3}), "test/CNV/1.png": b"x"}
    with prepared_job(write_tree(tmp_path / "scans", files), tmp_path / "out") as job:
        write_all(job)
        finish.finish_dataset(job.build)
    found = Manifest.load(tmp_path / "out")
    assert found.split("test").num_examples == 0
    assert (tmp_path / "out" / found.split("test").shards[0].name).read_bytes() == b""


def test_an_engine_that_only_says_it_is_done_is_not_believed(job):
    with pytest.raises(errors.BuildError, match=r"manifest\.json is missing"):
        require_finished(job)


def test_the_manifest_comes_last(job, monkeypatch):
    write_all(job)
    created = []
    create = type(job.storage).create

    def note(storage, name):
        created.append(name)
        return create(storage, name)

    monkeypatch.setattr(type(job.storage), "create", note)
    finish.finish_dataset(job.build)
    assert created[-1] == "manifest.json"


def test_names_that_terminals_and_tables_stumble_over_are_kept(tmp_path):
    odd = {
        'train/CNV/a,"b"\n.png': encoded(grey_pixels(1)),
        "train/CNV/=1+1.png": b"",
        "train/DME/\x1b[31m漢.png": encoded(grey_pixels(2)),
    }
    with prepared_job(write_tree(tmp_path / "scans", odd), tmp_path / "out") as job:
        write_all(job)
        finish.finish_dataset(job.build)
    with (tmp_path / "out/rejects.csv").open(newline="", encoding="utf-8") as file:
        assert [row[0] for row in csv.reader(file)][1:] == ["train/CNV/=1+1.png"]
    paths = pq.read_table(tmp_path / "out/examples.parquet")["path"].to_pylist()
    assert sorted(paths) == sorted(set(odd) - {"train/CNV/=1+1.png"})


def test_the_ledger_of_trees_that_lie_twice_adds_up(scans, tmp_path):
    files = files_of(scans)
    twice = write_tree(tmp_path / "twice", {**under("a", files), **under("b c", files)})
    with prepared_job(twice, tmp_path / "out", "--limit=7") as job:
        write_all(job)
        finish.finish_dataset(job.build)
    counts = Manifest.load(tmp_path / "out").counts
    assert counts["files"] == 2 * len(files)
    assert counts["copies"] == 30
    assert counts["over_limit"] == 30 - 14
    assert counts["examples"] + counts["rejects"] == 14 + 2


def test_a_plan_file_holds_a_batch_a_task(job):
    with job.storage.open_arrow(f"{BUILD_DIR}/plan.arrow") as file:
        reader = pa.ipc.open_file(file)
        sizes = [reader.get_batch(i).num_rows for i in range(reader.num_record_batches)]
    assert sizes == [task.num_refs for task in job.todo]
    tasks = json.loads(job.storage.read(plan.PLAN_JSON))["tasks"]
    assert [plan.ShardTask(*values) for values in tasks] == list(job.todo)


@pytest.fixture
def replaced(scans, job, tmp_path):
    """Puts a file of another launcher's build, which has another seed, over this build's own."""

    def replace(name):
        with prepared_job(scans, tmp_path / "other", "--seed=7") as other:
            content = other.storage.read(name)
        with job.storage.create(name) as file:
            file.write(content)

    return replace


def test_a_worker_does_not_write_what_another_launcher_planned(job, replaced):
    replaced(plan.PLAN_FILE)
    with pytest.raises(errors.BuildError, match="another command writes to the same --output"):
        write_all(job)


def test_a_dataset_is_not_finished_by_another_launchers_plan(job, replaced):
    write_all(job)
    replaced(plan.PLAN_JSON)
    with pytest.raises(errors.BuildError, match="another command writes to the same --output"):
        finish.finish_dataset(job.build)
    assert not job.storage.exists("manifest.json")


def test_a_dataset_that_would_hold_an_image_twice_is_not_finished(job):
    write_all(job)
    first, second = (
        f"{BUILD_DIR}/{task.shard_name.replace('.tfrecord', '.parquet')}" for task in job.todo[:2]
    )
    with job.storage.create(second) as file:
        file.write(job.storage.read(first))
    with pytest.raises(errors.BuildError, match="repeat the key of another example"):
        finish.finish_dataset(job.build)
    assert not job.storage.exists("manifest.json")
