import unicodedata

from hypothesis import given
from hypothesis import strategies as st

from tfrecord_io.terminal.spelling import in_one_form, one_form

FORMS = ("NFC", "NFD")


@given(st.text(), st.sampled_from(FORMS))
def test_all_forms_of_a_text_are_one_and_it_has_no_other(text, form):
    assert one_form(unicodedata.normalize(form, text)) == one_form(text) == one_form(one_form(text))
    assert unicodedata.is_normalized("NFC", one_form(text))


def test_what_is_in_a_flag_gets_the_one_form():
    decomposed, path = unicodedata.normalize("NFD", "Müller"), object()
    assert in_one_form({decomposed: (decomposed, 1)}) == {"Müller": ("Müller", 1)}
    assert in_one_form((path,)) == (path,)
