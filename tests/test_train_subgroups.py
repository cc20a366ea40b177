import numpy as np
import pytest

from train.results.metrics import MAX_VALUES, subgroups


def sizes(values):
    return {name: len(places) for name, places in subgroups(values).items()}


def test_each_text_is_a_subgroup_and_so_is_what_is_not_known():
    found = subgroups(["b", None, "a", "b"])
    assert list(found) == ["a", "b", "unknown"]
    assert [places.tolist() for places in found.values()] == [[2], [0, 3], [1]]
    assert sizes(["unknown", None]) == {"unknown": 2}
    # Few numbers stand in their order.
    assert list(subgroups([10, 9, 10, 2])) == ["2", "9", "10"]
    assert sizes([True, False, True]) == {"False": 1, "True": 2}


def test_many_numbers_become_ranges_between_their_quartiles():
    ages = [*range(21, 101), None]
    found = subgroups(ages)
    assert list(found) == ["21 to 40.75", "above 40.75 to 60.5", "above 60.5 to 80.25",
                           "above 80.25 to 100", "unknown"]  # fmt: skip
    assert [len(places) for places in found.values()] == [20, 20, 20, 20, 1]
    assert [ages[place] for place in found["above 40.75 to 60.5"]] == list(range(41, 61))


def test_every_image_is_in_one_range_even_if_half_of_them_have_the_same_number():
    found = subgroups([0.0] * 50 + list(np.arange(1.0, 51.0)))
    assert sorted(np.concatenate(list(found.values()))) == list(range(100))
    assert all(len(places) for places in found.values())


@pytest.mark.parametrize("num_values", [MAX_VALUES, MAX_VALUES + 5])
def test_of_very_many_values_the_largest_are_kept(num_values):
    values = [f"site {number:02}" for number in range(num_values)] * 2 + ["site 54"]
    assert len(subgroups(values)) == MAX_VALUES
    assert ("site 54" in subgroups(values)) == (num_values > 54)
