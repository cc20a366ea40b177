"""Images of one patient, study, volume or file belong together, and near duplicates do, too."""

import numpy as np
import pyarrow as pa
import pytest

from tfrecord_io.format.groups import MAX_CHAIN, believe, group_images


def groups_of(near_duplicates=None, **columns):
    """Returns the groups of images with the given columns, as sets of rows."""
    pairs = None if near_duplicates is None else np.array(near_duplicates, np.int64)
    codes = group_images(pa.table(columns), pairs).codes
    return [set(np.flatnonzero(codes == code).tolist()) for code in range(codes.max() + 1)]


@pytest.mark.parametrize(
    ("columns", "near_duplicates", "expected"),
    [
        # A study is preferred to its series.
        ({"study": ["s", "s", None], "series": ["a", "b", "b"]}, None, [{0, 1, 2}]),
        # An unknown patient costs one image alone its group.
        ({"patient": [*"ppqq", None]}, None, [{4}, {0, 1}, {2, 3}]),
        # An image of unknown patient joins the patient of its study,
        ({"patient": ["p", None, None], "study": ["s", "s", "t"]}, None, [{0, 1}, {2}]),
        # but a study does not join two known patients.
        ({"patient": ["p", "q", None], "study": ["s", "s", "s"]}, None, [{0, 2}, {1}]),
        ({"patient": pa.array(["p", "q", "p"]).dictionary_encode()}, None, [{0, 2}, {1}]),
        # Of a table of labels they can have any type.
        (
            {
                "patient": pa.chunked_array([["p", None], ["p", None]]),
                "study": [1, 2, None, 2],
                "series": [["a"], *[["b"]] * 3],
            },
            None,
            [{0, 2}, {1, 3}],
        ),
        # Near duplicates join whole patients,
        ({"patient": [*"ppqqr", None]}, [[1, 2], [5, 4]], [{0, 1, 2, 3}, {4, 5}]),
        # also one by one, all scans of a patient under another name.
        (
            {"patient": ["p"] * 60 + ["q"] * 60},
            [[row, row + 60] for row in range(60)],
            [set(range(120))],
        ),
    ],
)
def test_what_is_known_of_images_joins_them(columns, near_duplicates, expected):
    paths = [f"{row}.png" for row in range(max(map(len, columns.values())))]
    assert groups_of(near_duplicates, **columns, path=paths) == expected


def test_files_and_equal_files_are_groups_with_one_name_in_every_dataset():
    paths = ["a.tif", "a.tif#frame-2", "b.png", "b.png", "b.png", "c.png"]  # with two variants
    groups = group_images(pa.table({"path": paths}))
    assert groups.names.to_pylist() == ["file:a.tif"] * 2 + ["image:b.png"] * 3 + ["image:c.png"]
    assert (groups.sources, groups.unit) == ({"file": 2, "image": 4}, "group")
    paths, hashes = ["1.png", "2.tif", "3.png", "2.tif#frame-2"], ["aa", "bb", "aa", None]
    names = group_images(pa.table({"path": paths, "file_xxh3": hashes})).names.to_pylist()
    assert names == ["image:aa", "file:bb", "image:aa", "file:bb"]


def test_a_chain_of_too_many_images_is_reported_and_not_used():
    size = MAX_CHAIN + 1
    images = pa.table({"path": [str(row) for row in range(size + 2)]})
    chain = [[row, row + 1] for row in range(size - 1)]
    pairs = np.array([*chain, [size, size + 1]])
    codes = np.arange(size + 2)
    is_believed, long_chains = believe(codes, pairs)
    assert (is_believed.tolist(), long_chains) == ([False] * len(chain) + [True], (size,))
    assert len(set(group_images(images, pairs).names.to_pylist())) == size + 1
    assert believe(codes, pairs[1:])[1] == ()
    assert len(set(group_images(images, pairs[1:-1]).names.to_pylist())) == 4
    # Pairs within a patient make no chain.
    assert believe(0 * codes, pairs)[1] == ()


def test_groups_do_not_depend_on_the_order_of_the_images():
    generator = np.random.default_rng(0)
    values = [f"{value}" for value in generator.integers(40, size=200)]
    patients = [value if generator.random() < 0.5 else None for value in values]
    studies = generator.integers(60, size=200).astype(str)
    paths = [f"{row}.png" for row in range(200)]
    images = pa.table({"patient": patients, "study": studies, "path": paths})
    pairs = generator.integers(200, size=(20, 2))
    order = generator.permutation(200)
    names = group_images(images, pairs).names
    place = np.argsort(order)
    shuffled = group_images(images.take(pa.array(order)), place[pairs][::-1, ::-1]).names
    assert shuffled.to_pylist() == names.take(pa.array(order)).to_pylist()
