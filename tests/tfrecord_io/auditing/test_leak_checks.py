"""What the checks for leaks say of a table of images, without pictures."""

import numpy as np
import pyarrow as pa
import pytest
from dataset_factory import bare_manifest, split_of

from tfrecord_io.auditing import leak_checks
from tfrecord_io.auditing.findings import Examined
from tfrecord_io.auditing.twins import NearPair, Twins


def examined(rows, *, pairs=(), column="patient", most_listed=20, **found):
    """Examines images, each `split label patient picture`.

    A dot is an unknown patient; copies of a capital letter are one file.
    """
    splits, labels, names, pictures = zip(*(row.split() for row in rows), strict=True)
    places = [str(place) for place in range(len(rows))]
    files = [one if one.isupper() else place for one, place in zip(pictures, places, strict=True)]
    columns = {"split": splits, "label": labels, "path": places, "file_xxh3": files,
               "shard": places, "patient": [None] * len(rows)}  # fmt: skip
    columns[column] = [None if name == "." else name for name in names]
    present = [split for split in ("train", "val", "test") if split in splits]
    counted = {name: split_of([1, 1]) for name in present}
    manifest = bare_manifest(("CNV", "DME"), splits=counted, image_shape=(2, 2, 1))
    near = tuple(NearPair(one, other, 0.98765) for one, other in pairs)
    groups = np.unique(pictures, return_inverse=True)[1]
    found = {"min_similarity": 0.9, "near": near} | found
    twins = Twins(groups=groups, is_blank=np.zeros(len(rows), bool), **found)
    table = pa.table({**columns, "row": [*range(len(rows))]})
    return Examined(table, twins, manifest, most_listed)


SEVERAL = ["train CNV 1 a", "train CNV 1 a", "train CNV 1 a", "train CNV 3 a", "train CNV 1 a",
           "test DME 2 a", "train CNV 3 B", "train DME 3 B", "val CNV 5 c"]  # fmt: skip
TWO = ["train CNV 1 a", "test CNV 2 b"]
#: The check, the images, other facts, `code severity count` of the findings, and the measures.
CASES = [
    ("patients", SEVERAL, {}, ["patient_leak good 0"], [4, 0, 0]),
    ("patients", [*SEVERAL, "val CNV 3 d", "test CNV 3 e", "test CNV 1 f"], {},
     ["patient_leak problem 2"], [4, 0, 2]),
    ("patients", [*TWO, "train CNV . c"], {},
     ["no_patient warning 1", "patient_leak note 0"], [2, 1, 0]),
    ("patients", ["train CNV . a", "test CNV . b"], {}, ["no_patient warning 2"], [0, 2, 0]),
    ("patients", ["train CNV s a", "test CNV s b"], {"column": "study"},
     ["no_patient warning 2", "patient_leak problem 1"], [0, 2, 1]),
    ("patients", ["train CNV 1 a", "train CNV 2 b"], {}, [], [2, 0, 0]),
    ("exact", SEVERAL, {},
     ["picture_leak problem 1", "label_conflict problem 2", "duplicates warning 5"], [6, 1, 2]),
    ("exact", TWO, {}, ["duplicates good 0"], [0, 0, 0]),
    ("exact", ["train CNV 1 a", "test CNV 1 a"], {}, ["picture_leak problem 1"], [1, 1, 0]),
    ("near", [*TWO, "train DME 3 c"], {"pairs": [(0, 1), (0, 2)]},
     ["near_duplicates problem 1", "near_label_conflict warning 1"], [1, 1, True]),
    ("near", TWO, {}, ["near_duplicates good 0"], [0, 0, True]),
    ("near", TWO[:1], {}, [], [0, 0, True]),
    ("near", TWO, {"min_similarity": None}, ["near_duplicates note 0"], [None, None]),
    ("near", TWO[:1], {"min_similarity": None}, ["near_duplicates note 0"], [0, None]),
    ("near", TWO, {"num_unchecked": 3}, ["near_duplicates_unchecked warning 3"], [0, 0, False]),
    ("near", TWO, {"complete": False}, ["near_duplicates_unchecked warning 0"], [0, 0, False]),
    ("near", TWO, {"complete": False, "long_chains": (101, 150)}, ["near_chains warning 2"],
     [0, 0, False]),
]  # fmt: skip


@pytest.mark.parametrize(("name", "rows", "facts", "said", "measures"), CASES)
def test_each_check_counts_what_is_there_and_nothing_else(name, rows, facts, said, measures):
    images = examined(rows, **facts)
    found = list(getattr(leak_checks, f"check_{name}")(images))
    assert [f"{each.code} {each.severity} {each.count}" for each in found] == said
    assert [*images.measures.values()][1:] == measures
    assert all(len(each.listed) <= each.count for each in found)


def listed_by(check, rows, **facts):
    return [
        [list(row.values()) for row in found.listed] for found in check(examined(rows, **facts))
    ]


def test_the_worst_cases_are_listed_with_all_splits_and_labels():
    more = ["val CNV 3 d", "test CNV 3 e", *SEVERAL, "test CNV 1 f", "val CNV 1 g", "val CNV 1 h"]
    leaks = [["1", 4, 2, 1], ["3", 3, 1, 1]]
    assert listed_by(leak_checks.check_patients, more) == [leaks]
    assert listed_by(leak_checks.check_patients, more, most_listed=1) == [leaks[:1]]
    for study, start in (("s", "1 study "), ("t", "No study ")):
        images = examined(["train CNV s a", f"test CNV {study} b"], column="study")
        *_, found = leak_checks.check_patients(images)
        assert found.title.startswith(start)
    across, within = listed_by(leak_checks.check_exact, SEVERAL)[::2]
    assert across == [[6, "test, train", "CNV, DME", "no, same pixels", "0", "1"]]
    assert within == [[2, "train", "CNV, DME", "yes", "6", "7"], *across]
    (((one, other, similarity),),) = listed_by(leak_checks.check_near, TWO, pairs=[(0, 1)])
    assert (one["path"], other["path"], similarity) == ("0", "1", 0.9877)


def test_of_copies_the_one_in_test_stays_and_none_under_contradicting_labels():
    rows = ["train CNV 1 a", "test CNV 2 a", "val CNV 3 a", "val DME 4 b", "train CNV 5 c",
            "train CNV 6 d", "train DME 6 d", "train CNV 7 e", "train CNV 7 e"]  # fmt: skip
    found = leak_checks.copies(examined(rows, pairs=[(3, 4), (4, 5), (1, 5)]))
    assert [" ".join(row.values()) for row in found] == [
        "2 1 same pixels", "0 1 same pixels", "6 5 same pixels, another label",
        "5 6 same pixels, another label", "8 7 same pixels", "4 3 near duplicate, another label",
    ]  # fmt: skip
