"""Folds hold whole patients, for ever the same ones; the test split is left alone."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from answers import dataset_of
from dataset_factory import change_column
from marked_images import marked_data, regroup, write_marked_dataset

import tfrecord_io
from tfrecord_io.format.statistics import PixelStatistics
from tfrecord_io.terminal.errors import UserError
from train.data.dataset import choose_parts, open_dataset, patient_folds
from train.training.config import TrainConfig

NUM_EXAMPLES = {"train": 40, "val": 10, "test": 12}


data = marked_data(NUM_EXAMPLES)


def choose(data, **fields):
    config = TrainConfig.of(data=data, **fields)
    return choose_parts(open_dataset(data), config.folds)


@pytest.mark.parametrize(
    ("sizes", "evaluated"),
    [((40, 0, 0), None), ((40, 10, 0), "val"), ((40, 0, 12), "test"), ((40, 10, 12), "test")],
)
def test_without_folds_the_parts_are_the_splits_that_have_images(tmp_path, sizes, evaluated):
    write_marked_dataset(tmp_path, num_examples=dict(zip(NUM_EXAMPLES, sizes, strict=True)))
    chosen = choose(str(tmp_path))
    assert (chosen.evaluated and chosen.evaluated.name) == evaluated
    for name, size in zip(NUM_EXAMPLES, sizes, strict=True):
        part = getattr(chosen, name)
        found = part and (part.name, part.splits, part.num_examples)
        assert found == ((name, (name,), size) if size else None)


def test_each_example_is_held_out_once_and_learnt_from_in_the_other_folds(data):
    held_out = []
    for fold in range(3):
        chosen = choose(data, folds=3, fold=fold)
        assert chosen.val is None
        assert chosen.evaluated is chosen.test
        ours, others = chosen.test.rows, chosen.train.rows
        values = open_dataset(data).values
        for column in ("key", "patient"):
            assert set(values(column, ours)).isdisjoint(values(column, others))
        assert len(ours) + len(others) == 50
        held_out += ours.tolist()
    assert len(set(held_out)) == len(held_out) == 50


def test_counts_and_statistics_of_a_part_are_those_of_its_images(tmp_path):
    data = str(tmp_path)
    write_marked_dataset(tmp_path, num_examples={"train": 600, "val": 9}, image_shape=(4, 3, 3))
    fold = choose(data, folds=4, fold=1)
    for part in (choose(data).train, choose(data).val, fold.train, fold.test):
        dataset = open_dataset(data)
        images, labels = dataset.stored[part.rows]
        assert labels.sum(0).tolist() == list(dataset.label_counts(part))
        assert dataset.statistics(part) == PixelStatistics.from_images(images)


def test_the_test_split_stays_out_unless_it_is_named(data):
    def splits_in(**fields):
        chosen, values = choose(data, folds=3, fold=0, **fields), open_dataset(data).values
        patients = values("patient", np.concatenate([chosen.train.rows, chosen.test.rows]))
        return ",".join(sorted({patient.partition("-")[0] for patient in patients}))

    assert splits_in() == "train,val"
    for named in ("train", "test,train,val"):
        assert splits_in(fold_splits=named) == named
    with pytest.raises(tfrecord_io.ManifestError, match="no split 'extra' in this dataset; it has"):
        splits_in(fold_splits="train,extra")


def test_a_patient_stays_in_its_fold_when_images_are_added():
    def folds(*patients):
        dataset = dataset_of(len(patients), list(patients))
        return patient_folds(dataset.groups, 5).tolist()

    many = folds(*(f"patient-{number}" for number in range(200)))
    assert folds("patient-7", "patient-3") == [many[7], many[3]]
    # A hash that never changes, and about as many patients in each.
    assert many[:8] == [0, 3, 2, 1, 2, 1, 2, 2]
    assert min(np.bincount(many)) > 25
    # Where no patients are known, images are dealt out.
    assert min(np.bincount(patient_folds(dataset_of(100).groups, 4))) > 10


def with_columns(directory, **columns):
    """Replaces columns of the examples table, or adds them."""
    path = directory / "examples.parquet"
    table = pq.read_table(path)
    table = table.drop_columns(list(columns.keys() & set(table.column_names)))
    for name, values in columns.items():
        table = table.append_column(name, pa.array(values))
    pq.write_table(table, path)


def folds_of(directory, num_folds=5):
    dataset = open_dataset(str(directory))
    return patient_folds(dataset.groups.take(dataset.part("train").rows), num_folds)


def test_groups_decide_the_folds_and_one_unknown_patient_does_not_move_the_others(tmp_path):
    write_marked_dataset(tmp_path, num_examples={"train": 60})
    before = folds_of(tmp_path)
    change_column(tmp_path / "examples.parquet", "patient", lambda names: [*names[:-1], None])
    regroup(tmp_path)
    assert folds_of(tmp_path)[:-1].tolist() == before[:-1].tolist()
    with_columns(tmp_path, group=[f"patient:{row // 20}" for row in range(60)])
    assert (folds_of(tmp_path).reshape(3, 20).std(1) == 0).all()


def test_augmented_copies_stay_with_their_original_and_are_not_scored(tmp_path):
    write_marked_dataset(tmp_path, num_examples={"train": 60})
    paths = [f"{row // 3}.png" for row in range(60)]
    with_columns(tmp_path, patient=pa.nulls(60, pa.string()), path=paths, variant=np.arange(60) % 3)
    regroup(tmp_path)
    held_out = []
    for fold in range(4):
        chosen = choose(str(tmp_path), folds=4, fold=fold)
        dataset = open_dataset(str(tmp_path))
        learnt, scored = (dataset.values("path", part.rows) for part in (chosen.train, chosen.test))
        assert not set(learnt) & set(scored)
        assert not dataset.is_copy(chosen.test).any()
        assert dataset.is_copy(chosen.train).mean() == pytest.approx(2 / 3)
        held_out += scored
    assert sorted(held_out) == sorted(set(paths))


def test_rows_in_another_order_are_found_by_their_places_in_the_shards(tmp_path):
    write_marked_dataset(tmp_path, num_examples={"train": 4, "val": 0, "test": 5})

    def known():
        dataset = open_dataset(str(tmp_path))
        rows = dataset.part("test", "train").rows
        names = dataset.groups.take(rows).names
        return dataset.values("patient", rows), dataset.values("key", rows), names

    before = known()
    path = tmp_path / "examples.parquet"
    pq.write_table(pq.read_table(path).sort_by("key"), path)
    assert known() == before
    assert before[0][:5] == ["test-0", "test-0", "test-1", "test-1", "test-2"]


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda path: pq.write_table(pq.read_table(path).slice(1), path), "does not have one row"),
        (lambda path: path.write_bytes(b"PAR1"), "is damaged"),
        (Path.unlink, "is missing"),
        (lambda path: with_columns(path.parent, group=["x"] * 5), "has no groups of images"),
    ],
)
def test_a_table_that_lacks_examples_is_refused(tmp_path, damage, message):
    write_marked_dataset(tmp_path, num_examples={"test": 5})
    damage(tmp_path / "examples.parquet")
    with pytest.raises(UserError, match=rf"examples\.parquet ?{message}"):
        open_dataset(str(tmp_path))
