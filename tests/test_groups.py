"""Images of one patient, and copies of images without one, belong together."""

import pyarrow as pa
import pytest

from tfrecord_io.groups import group_codes, group_names


@pytest.mark.parametrize("as_column", [list, pa.array, lambda v: pa.chunked_array([v[:2], v[2:]])])
def test_an_image_belongs_to_its_patient_or_to_what_else_is_known(as_column):
    patients, others = ["b", None, "a", None], ["x:1", "x:2", "x:1", "x:2"]
    names = group_names(as_column(patients), as_column(others))
    assert names.to_pylist() == ["patient:b", "x:2", "patient:a", "x:2"]
    assert group_codes(names).tolist() == [1, 2, 0, 2]


def test_an_unknown_patient_without_more_is_a_group_by_itself():
    names = group_names([None] * 11 + ["a"])
    assert group_codes(names).tolist() == list(range(12))


def test_repeated_names_of_a_dictionary_column_are_one_group():
    patients = pa.array(["p", "q", "p"]).dictionary_encode()
    assert group_codes(group_names(patients)).tolist() == [0, 1, 0]


def test_no_image_has_no_group():
    assert group_codes(group_names([])).tolist() == []
