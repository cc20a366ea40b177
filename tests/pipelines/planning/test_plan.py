import itertools

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines import errors
from pipelines.listing.images import Images, Ledger
from pipelines.listing.refs import REF_SCHEMA
from pipelines.planning.plan import PlanOptions, make_plan

STRIDE = 50_000


def planned(counts, **options):
    """Returns the tasks, with the rows of each."""
    facts = {"root": "", "offset": 0, "stored_size": 1, "size": 1, "version": 0}
    rows = [
        {"split": split, "label": label, "path": f"{split}/{label}/{number}.jpeg", **facts}
        for split, num_images in counts.items()
        for label in ("CNV", "NORMAL")
        for number in range(label == "NORMAL", num_images, 2)
    ]
    table = pa.Table.from_pylist(rows, REF_SCHEMA)
    refs, tasks = make_plan(table, STRIDE, PlanOptions(**options))
    ends = list(itertools.accumulate(task.num_refs for task in tasks))
    assert ends[-1] == refs.num_rows
    return [
        (task, refs.slice(end - task.num_refs, task.num_refs))
        for task, end in zip(tasks, ends, strict=True)
    ]


def paths_by_split(made):
    paths = {}
    for task, rows in made:
        paths.setdefault(task.split, []).extend(rows["path"].to_pylist())
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
    tasks = [task for task, _ in made]
    assert [task.index for task in tasks] == list(range(len(tasks)))
    limit, num_shards = options["limit"] or max(counts.values()), options.get("num_shards")
    counts = {split: min(count, limit) for split, count in counts.items()}
    for split, count in counts.items():
        of_split = [task for task in tasks if task.split == split]
        if num_shards:
            share = max(1, round(num_shards * count / max(counts.values())))
            assert len(of_split) == min(count, share)
        sizes = {task.num_refs for task in of_split}
        assert 1 <= min(sizes) <= max(sizes) <= min(sizes) + 1
        assert [task.shard_index for task in of_split] == list(range(len(of_split)))
        assert {task.num_shards for task in of_split} == {len(of_split)}
        assert of_split[0].shard_name == f"{split}-00000-of-{len(of_split):05d}.tfrecord"


def test_small_splits_have_shards_enough_for_the_cores():
    assert len(planned({"train": 400})) == 6
    assert len(planned({"train": 40})) == 1
    assert len(planned({"train": 4000, "val": 10})) == 16 + 1


def test_the_order_of_a_seed_never_changes():
    # What this pins down is in every dataset: a change makes the same command build other bytes.
    (paths,) = paths_by_split(planned({"train": 8}, seed=7)).values()
    assert [path[-6] for path in paths] == list("50372164")


def test_the_shuffle_is_over_the_whole_split_and_mixes_classes():
    made = planned({"train": 400}, num_shards=10)
    assert all(5 < rows["label"].to_pylist().count("CNV") < 35 for _, rows in made)
    positions = np.argsort(np.argsort(paths_by_split(made)["train"]))
    assert abs(np.corrcoef(positions, np.arange(400))[0, 1]) < 0.15


def test_a_limit_takes_the_first_of_each_split_in_its_shuffled_order():
    counts = {"test": 3, "val": 3, "train": 50}
    whole, limited = paths_by_split(planned(counts)), planned(counts, limit=10)
    assert paths_by_split(limited) == {split: paths[:10] for split, paths in whole.items()}
    assert list(whole) == ["train", "val", "test"]


def test_copies_of_a_split_that_is_not_there_are_refused():
    with pytest.raises(errors.UserError, match="--variants makes copies of the split train"):
        planned({"test": 4}, variants=1)


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
