import unicodedata

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from tfrecord_io.format.person import Person, persons

TEXTS = st.text(min_size=1)


@given(TEXTS, TEXTS, st.sampled_from(["NFC", "NFD"]))
def test_a_person_is_the_same_in_any_form_and_is_read_back_from_its_text(site, name, form):
    person = Person(site, name)
    assert Person(unicodedata.normalize(form, site), unicodedata.normalize(form, name)) == person
    assert Person.read(str(person), {person.site}) == person
    assert Person.read(person.name, set()) == Person("", name)


@given(st.tuples(TEXTS, TEXTS), st.tuples(TEXTS, TEXTS))
def test_two_persons_have_two_texts(one, other):
    assert (str(Person(*one)) == str(Person(*other))) == (Person(*one) == Person(*other))


def test_a_column_of_persons_has_the_texts_of_each():
    rows = [("a/b", "1"), ("a", "b/1"), ("", "7"), ("Zu\u0308rich", "Mu\u0308ller")]
    sites, names = zip(*rows, strict=True)
    found = persons(pa.array([*names, None]), pa.array([*sites, "a"])).to_pylist()
    assert found == [*(str(Person(*row)) for row in rows), None]
    assert found[:2] == ["a%2Fb/1", "a/b/1"]
