import contextlib
import dataclasses
import functools
import json
import operator

import pytest
from dataset_factory import bare_manifest
from hypothesis import given
from hypothesis import strategies as st

from tfrecord_io.decoding.options import Preprocessing
from tfrecord_io.format import manifest
from tfrecord_io.format.manifest import Manifest, ManifestError, Shard, Split, shard_name
from tfrecord_io.format.schema import RecordLayout
from tfrecord_io.format.statistics import PixelStatistics

LABELS = ("CNV", "DME", "DRUSEN", "NORMAL")


def make_manifest(counts, image_shape=(4, 6, 1), labels=LABELS):
    """Returns a manifest with a shard for each row of label counts, by split."""
    stride = RecordLayout(image_shape=image_shape, num_classes=len(labels)).stride
    splits = {
        split: Split(
            label_counts=tuple(map(sum, zip(*rows, strict=True))),
            shards=tuple(
                Shard(
                    name=shard_name(split, index, len(rows)),
                    num_examples=sum(row),
                    num_bytes=sum(row) * stride,
                    sha256=f"{index:064x}",
                )
                for index, row in enumerate(rows)
            ),
        )
        for split, rows in counts.items()
    }
    made = bare_manifest(name="scans", image_shape=image_shape, label_names=labels, splits=splits)
    facts = {"source": {"kind": "archive", "name": "scans.zip"}, "rejects": {"truncated": 2}}
    counts = {"files": 9, "examples": 9, "ignored": {"hidden": 1}}
    return dataclasses.replace(made, counts=counts, options={"limit": None}, **facts)


TRAIN = ((1, 2, 3, 4), (0, 0, 0, 0), (4, 3, 2, 1))
A_MANIFEST = make_manifest({"train": TRAIN, "test": ((1, 1, 1, 1),)})
# Of 20 train images of 4x6 pixels.
STATISTICS = PixelStatistics(num_pixels=480, sums=(960,), sums_of_squares=(2000,))
COUNTED = dataclasses.replace(A_MANIFEST, statistics=STATISTICS)


@given(
    counts=st.dictionaries(
        st.sampled_from(["train", "val", "test"]),
        st.lists(st.tuples(*[st.integers(0, 50)] * 3), min_size=1, max_size=4),
    ),
    shape=st.tuples(st.integers(1, 30), st.integers(1, 30), st.sampled_from([1, 3])),
    labels=st.lists(st.text(min_size=1, max_size=6), min_size=3, max_size=3, unique=True),
)
def test_a_manifest_reads_back_as_it_was(counts, shape, labels):
    written = make_manifest(counts, shape, tuple(labels))
    assert Manifest.from_json(written.to_json()) == written


def test_several_splits_are_one_whose_parts_follow_each_other():
    together = A_MANIFEST.split(("train", "test"))
    train, test = A_MANIFEST.split("train"), A_MANIFEST.split(["test"])
    assert test == A_MANIFEST.splits["test"]
    assert together.shards == (*train.shards, *test.shards)
    assert together.label_counts == (6, 6, 6, 6)
    assert together.num_examples == train.num_examples + test.num_examples == 24
    for names in ("dev", ("train", "dev")):
        with pytest.raises(ManifestError, match="no split 'dev' in this dataset; it has test, tr"):
            A_MANIFEST.split(names)


def test_a_file_that_is_no_manifest_is_refused_by_name(tmp_path):
    path = tmp_path / manifest.FILE_NAME
    for content in (b"", b"{", b"[]", b"null", b"{}", b"\xff\xfe", b'"text"', b"1"):
        path.write_bytes(content)
        with pytest.raises(ManifestError, match=str(path)):
            Manifest.load(tmp_path)


def changed(change):
    content = json.loads(COUNTED.to_json())
    change(content)
    return json.dumps(content)


def first_shard(content):
    return content["splits"]["train"]["shards"][0]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: c.update(format_version=3), "format version 3, but .* reads versions up to 2"),
        (lambda c: c["record"].update(stride=1), "record layout does not match"),
        (lambda c: c["image"].update(shape=[4, 7, 1]), "record layout does not match"),
        (lambda c: c["image"].update(dtype="float32"), "record layout does not match"),
        (lambda c: c.update(preprocessing=Preprocessing().to_dict()), "its preprocessing makes"),
        (lambda c: c["image"].update(shape=[10**6, 10**6, 1]), "smaller than 2 GiB"),
        (lambda c: c["label_names"].append("MORE"), "damaged"),
        (lambda c: c["splits"]["train"].update(num_examples=1), "'train' do not add up"),
        (lambda c: c["splits"]["train"]["label_counts"].update(CNV=0), "'train' do not add up"),
        (lambda c: first_shard(c).update(num_bytes=1), "train-00000-of-00003.tfrecord should have"),
        (lambda c: c["statistics"].update(split="test"), r"received \('test', 480"),
        (lambda c: c["statistics"].update(num_pixels=481), r"received \('train', 481, 1\)"),
        (lambda c: c["statistics"].update(sums=[0.5]), "damaged.*for statistics.sums"),
        (lambda c: c.update(name=7), "damaged: .*expected a text for name, received 7"),
        (lambda c: c["counts"].update(dropped=3), "expected a mapping for counts.dropped"),
        (lambda c: c["rejects"].update(truncated=-1), "for rejects.truncated, received -1"),
        (lambda c: c["label_names"].append(7), r"expected a text for label_names\[4\]"),
        (lambda c: c.update(statistics=None), "damaged"),
    ],
)
def test_a_later_format_a_contradiction_and_other_types_are_refused(change, message):
    with pytest.raises(ManifestError, match=message):
        Manifest.from_json(changed(change))


def rename_split(content, name):
    content["splits"][name] = content["splits"].pop("train")


@pytest.mark.parametrize(
    "name",
    ["/etc/x", "../../y/train", "..", ".a", "a/b", "a\\b", "", "a\0b", "gs://b/x", "a" * 201],
)
@pytest.mark.parametrize(
    ("kind", "rename"),
    [
        ("dataset", lambda content, name: content.update(name=name)),
        ("split", rename_split),
        ("shard", lambda content, name: first_shard(content).update(name=name)),
    ],
)
def test_a_name_that_could_be_a_path_is_refused(kind, rename, name):
    with pytest.raises(ManifestError, match=f"expected the name of a {kind}, of up to 200 letters"):
        Manifest.from_json(changed(lambda content: rename(content, name)))


def paths_in(content, path=()):
    """Yields the path of every value in a JSON document."""
    if path:
        yield path
    items = content.items() if isinstance(content, dict) else enumerate(content)
    for key, value in items:
        if isinstance(value, dict | list):
            yield from paths_in(value, (*path, key))
        else:
            yield (*path, key)


PATHS = list(paths_in(json.loads(A_MANIFEST.to_json())))
JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 10**20) | st.floats() | st.text(max_size=5),
    lambda values: st.lists(values, max_size=3) | st.dictionaries(st.text(max_size=3), values),
    max_leaves=4,
)


@given(path=st.sampled_from(PATHS), value=JSON_VALUES)
def test_whatever_stands_in_a_manifest_it_is_read_or_refused(path, value):
    content = json.loads(A_MANIFEST.to_json())
    functools.reduce(operator.getitem, path[:-1], content)[path[-1]] = value
    with contextlib.suppress(ManifestError):
        Manifest.from_json(json.dumps(content))
