import unicodedata

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from tfrecord_io.format.person import person, persons

PAIRS = st.tuples(st.text(min_size=1), st.text(min_size=1))


def form(pair, name="NFC"):
    return [unicodedata.normalize(name, text) for text in pair]


@given(PAIRS, PAIRS)
def test_a_person_has_one_text_in_any_form_and_two_have_two(one, other):
    assert person(*one) == person(*form(one)) == person(*form(one, "NFD"))
    assert (person(*one) == person(*other)) == (form(one) == form(other))
    columns = pa.array([one[1], None]), pa.array([one[0], "a"])
    assert persons(*columns).to_pylist() == [person(*one), None]
