import io
import itertools
import zlib
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from listed import list_files

from pipelines import errors
from pipelines.listing.images import Images, Ledger
from pipelines.listing.refs import REF_SCHEMA, iterate_refs
from pipelines.planning import plan
from pipelines.planning.plan import PlanOptions, make_plan
from pipelines.sources.source import Member
from pipelines.stores import output_folder
from tfrecord_io.terminal import printing

STRIDE = 50_000


def listing_of(counts):
    """Returns the listing of `counts[split]` files a split, of two classes, with odd sizes."""
    members = [
        Member(f"{split}/{label}/{label}-{i // 3}-{i}.jpeg", 100 + i, i, 90, zlib.crc32(b"%d" % i))
        for split, count in counts.items()
        for i, label in zip(range(count), itertools.cycle(["CNV", "NORMAL"]), strict=False)
    ]
    return list_files(members, layout=("split", "class"))


class Plan(NamedTuple):
    refs: pa.Table
    tasks: tuple[plan.ShardTask, ...]


def planned(counts, **options):
    return Plan(*make_plan(listing_of(counts).table, STRIDE, PlanOptions(**options)))


def paths_by_split(made):
    paths = {}
    start = 0
    for task in made.tasks:
        rows = made.refs.slice(start, task.num_refs)["path"].to_pylist()
        paths.setdefault(task.split, []).extend(rows)
        start += task.num_refs
    assert start == made.refs.num_rows
    return paths


COUNTS = st.dictionaries(st.sampled_from(["train", "val", "test"]), st.integers(1, 70), min_size=1)
OPTIONS = st.builds(
    lambda seed, size, limit: {"seed": seed, "limit": limit, **size},
    st.integers(0, 2**63 - 1),
    st.sampled_from([{}, {"num_shards": 1}, {"num_shards": 7}, {"num_shards": 1000}]),
    st.sampled_from([None, 1, 5, 60, 10**9]),
)  # fmt: skip


@given(counts=COUNTS, options=OPTIONS)
def test_every_image_is_planned_once_in_shards_that_differ_by_one_image_at_most(counts, options):
    made = planned(counts, **options)
    for split, paths in paths_by_split(made).items():
        expected = min(counts[split], options["limit"] or counts[split])
        assert len(paths) == len(set(paths)) == expected
        assert all(path.startswith(f"{split}/") for path in paths)
    assert [task.index for task in made.tasks] == list(range(len(made.tasks)))
    limit, num_shards = options["limit"] or max(counts.values()), options.get("num_shards")
    counts = {split: min(count, limit) for split, count in counts.items()}
    for split, count in counts.items():
        tasks = [task for task in made.tasks if task.split == split]
        if num_shards:
            share = max(1, round(num_shards * count / max(counts.values())))
            assert len(tasks) == min(count, share)
        sizes = {task.num_refs for task in tasks}
        assert max(sizes) - min(sizes) <= 1
        assert min(sizes) >= 1
        assert [task.shard_index for task in tasks] == list(range(len(tasks)))
        assert {task.num_shards for task in tasks} == {len(tasks)}
        assert tasks[0].shard_name == f"{split}-00000-of-{len(tasks):05d}.tfrecord"


def test_shards_are_such_that_cores_can_share_them():
    assert len(planned({"train": 400}).tasks) == 6
    assert len(planned({"train": 40}).tasks) == 1
    assert len(planned({"train": 4000, "val": 10}).tasks) == 16 + 1


def test_the_order_of_a_seed_never_changes():
    # What this pins down is in every dataset: a change makes the same command build other bytes.
    made = planned({"train": 8}, seed=7)
    assert [path[-6] for path in made.refs["path"].to_pylist()] == list("50372164")


def test_the_shuffle_is_over_the_whole_split_and_mixes_classes():
    made = planned({"train": 400}, num_shards=10)
    start = 0
    for task in made.tasks:
        labels = made.refs.slice(start, task.num_refs)["label"].to_pylist()
        assert 5 < labels.count("CNV") < 35
        start += task.num_refs
    positions = np.argsort(np.argsort(made.refs["path"].to_pylist()))
    assert abs(np.corrcoef(positions, np.arange(400))[0, 1]) < 0.15


def test_a_limit_takes_the_first_of_each_split_in_its_shuffled_order():
    counts = {"test": 3, "val": 3, "train": 50}
    whole, limited = paths_by_split(planned(counts)), planned(counts, limit=10)
    assert paths_by_split(limited) == {split: paths[:10] for split, paths in whole.items()}
    assert list(whole) == ["train", "val", "test"]


def test_copies_of_a_split_that_is_not_there_are_refused():
    with pytest.raises(errors.UserError, match="--variants makes copies of the split train"):
        planned({"test": 4}, variants=1)


@given(counts=COUNTS, num_shards=st.integers(1, 20))
def test_a_worker_reads_from_the_file_what_was_planned_for_its_task(counts, num_shards):
    made = planned(counts, num_shards=num_shards)
    file = io.BytesIO()
    plan.write_refs(file, made.refs, made.tasks, "mine")
    start = 0
    for task in made.tasks:
        with pa.BufferReader(file.getvalue()) as reader:
            refs = list(iterate_refs(plan.read_task_refs(reader, task, "mine")))
        assert refs == list(iterate_refs(made.refs.slice(start, task.num_refs)))
        start += task.num_refs


# ---- fingerprints

BASE = [
    {"root": root, "path": f"train/CNV/{i}.png", "split": "train", "label": "CNV", "patient": None,
     "offset": i, "stored_size": 5, "size": 9, "version": 3}
    for root in ("a", "") for i in range(3)
]  # fmt: skip


def digest(rows):
    return Images(table=pa.Table.from_pylist(rows, REF_SCHEMA), ledger=Ledger()).digest


@given(
    row=st.integers(0, len(BASE) - 1),
    change=st.sampled_from(
        [{"root": "b"}, {"path": "train/CNV/9.png"}, {"size": 10}, {"version": 4}, {"version": -3},
         {"split": "val"}, {"label": "DME"}, {"patient": "7"}, {"frame": 2}]
    ),
)  # fmt: skip
def test_the_digest_of_a_listing_changes_with_every_image(row, change):
    assert digest([*BASE[:row], BASE[row] | change, *BASE[row + 1 :]]) != digest(BASE)


IDENTITY = {"seed": 0, "classes": ["CNV", "DME"], "limit": None, "decoder": {"pillow": "12"}}


@pytest.mark.parametrize(
    "change",
    [{"seed": 1}, {"classes": ["DME", "CNV"]}, {"limit": 0}, {"decoder": {"pillow": "13"}},
     {"more": None}],
)  # fmt: skip
def test_the_fingerprint_changes_with_everything_and_the_difference_is_named(change):
    changed = {**IDENTITY, **change}
    assert output_folder.fingerprint(changed) != output_folder.fingerprint(IDENTITY)
    lines = printing.differences(IDENTITY, changed)
    if change != {"more": None}:
        assert len(lines) == 1
        assert lines[0].startswith(f"{next(iter(change))}: ")
