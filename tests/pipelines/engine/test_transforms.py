import dataclasses
import hashlib
from concurrent import futures
from pathlib import Path

import apache_beam as beam
import pyarrow.parquet as pq
import pytest
from apache_beam.runners.portability.fn_api_runner import FnApiRunner
from builds import csv_rows, files_of, prepare
from dataset_factory import stored
from image_files import scan_tree, scans_of

from pipelines import errors
from pipelines.engine import engine
from pipelines.listing.refs import iterate_refs
from pipelines.planning import plan
from pipelines.shards import finish, write
from pipelines.shards.build import rows_name
from pipelines.stores import output_folder
from tfrecord_io.decoding import preprocess
from tfrecord_io.decoding.options import Preprocessing
from tfrecord_io.decoding.rejects import Reject
from tfrecord_io.format import examples
from tfrecord_io.format.manifest import Manifest
from tfrecord_io.format.schema import image_key
from tfrecord_io.format.statistics import PixelStatistics

BAD = {"train/CNV/CNV-9-1.jpeg": b"", "test/DME/DME-9-1.jpeg": b"no image at all"}


scans = scans_of(lambda: scan_tree({"train": 5, "test": 2}) | BAD | {"notes.txt": b""})


def prepared_job(scans, output, *more):
    return prepare(scans, output, "--max_reject_fraction=0.5", "--num_shards=3", *more)


@pytest.fixture
def job(scans, tmp_path):
    with prepared_job(scans, tmp_path / "out") as job:
        yield job


def write_all(job):
    with job.build.source.open() as reader:
        return [
            write.write_shard(job.build, task, reader, job.build.output.create) for task in job.todo
        ]


def test_a_shard_and_its_rows_hold_the_planned_images_in_order_without_the_rejects(job):
    draft, output = job.build.draft, job.build.output
    layout, preprocessing = draft.layout, Preprocessing.from_dict(draft.preprocessing)
    for task, sidecar in zip(job.todo, write_all(job), strict=True):
        expected, kept, rejected = b"", [], []
        with output.open(output_folder.PLAN_FILE) as file:
            refs = list(iterate_refs(plan.read_task_refs(file, task, draft.fingerprint)))
        with job.build.source.open() as reader:
            for ref in refs:
                try:
                    image = preprocess.decode_image(reader.read(ref.member), preprocessing)
                except Reject as reject:
                    rejected.append((ref.source_path, reject.reason))
                    continue
                (label,) = draft.label_kind.vectors([ref.label], draft.label_names)
                expected += layout.encode_record(image.pixels, label, image_key(ref.path))
                facts = (ref.source_path, ref.label, ref.patient, ref.size)
                kept.append((len(kept), image_key(ref.path), *facts))
        assert output.read(task.shard_name) == expected
        assert sidecar.num_bytes == len(expected)
        assert sidecar.sha256 == hashlib.sha256(expected).hexdigest()
        assert sidecar.num_examples == sum(sidecar.label_counts) == len(kept)
        assert [(r.source_path, r.reason) for r in sidecar.rejects] == rejected
        assert len(refs) == sidecar.num_refs == task.num_refs
        rows = job.build.read_rows(task)
        rows = rows.select(["row", "key", "path", "label", "patient", "file_bytes"]).to_pylist()
        assert [tuple(row.values()) for row in rows] == kept


def test_a_shard_written_by_two_workers_at_once_is_whole(job):
    expected = write_all(job)
    before = files_of(Path(job.build.output.root))
    with futures.ThreadPoolExecutor(2) as threads:
        list(threads.map(write_all, [job, job]))
    assert files_of(Path(job.build.output.root)) == before
    assert job.build.find_finished(job.todo) == dict(enumerate(expected))


def test_a_worker_with_another_pillow_refuses_to_mix_pixels(job):
    draft = dataclasses.replace(job.build.draft, versions={"pillow": "1.0", "libjpeg": "6"})
    other = dataclasses.replace(job.build, draft=draft)
    with (
        job.build.source.open() as reader,
        pytest.raises(errors.BuildError, match=r"the launcher planned with .*'1\.0'"),
    ):
        write.write_shard(other, job.todo[0], reader, job.build.output.create)


def run(job, tasks):
    with beam.Pipeline(runner=FnApiRunner()) as pipeline:
        engine.add_steps(pipeline, tasks, job.build, None)


def test_tasks_become_a_dataset_whose_tables_name_every_image(job):
    run(job, [*job.todo, *job.todo])  # a task may come twice
    found = Manifest.load(job.build.output.root)
    assert found.counts["examples"] == found.num_examples == 28
    assert found.rejects == {"empty": 1, "not_an_image": 1}
    table = pq.read_table(job.build.output.path("examples.parquet"))
    assert table.schema.names == list(examples.OWN)
    in_order = [shard.name for shard in found.shards for _ in range(shard.num_examples)]
    assert table["shard"].to_pylist() == in_order
    assert len(set(table["key"].to_pylist())) == 28
    assert sorted(BAD) == [row[0] for row in csv_rows(Path(job.build.output.path("rejects.csv")))]
    assert found.statistics == PixelStatistics.from_images(stored(job.build.output.root)[0])


def repeat_rows(job):
    first, second = map(rows_name, job.todo[:2])
    job.build.output.write(second, job.build.output.read(first))


def lose_a_column(job):
    with job.build.output.create(rows_name(job.todo[1])) as file:
        pq.write_table(job.build.read_rows(job.todo[1]).drop_columns("shape"), file)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda job: job.build.output.delete([job.todo[1].shard_name]), "written, but is missing"),
        (repeat_rows, "repeat the key of another example"),
        (lose_a_column, "another version .* start again with --overwrite"),
        (lambda job: job.build.draft.counts.update(copies=1), "accounted for"),
    ],
)
def test_shards_tables_and_counts_that_do_not_fit_are_no_finished_dataset(job, damage, message):
    write_all(job)
    damage(job)
    with pytest.raises(errors.BuildError, match=message):
        finish.finish_dataset(job.build)
    assert not job.build.output.exists("manifest.json")


def test_another_launchers_plan_is_neither_written_nor_finished(scans, job, tmp_path):
    write_all(job)
    with prepared_job(scans, tmp_path / "other", "--seed=7") as other:
        for name in (output_folder.PLAN_FILE, output_folder.PLAN_JSON):
            job.build.output.write(name, other.build.output.read(name))
    for go_on in (write_all, lambda job: finish.finish_dataset(job.build)):
        with pytest.raises(errors.BuildError, match="another command writes to the same --output"):
            go_on(job)
    assert not job.build.output.exists("manifest.json")
