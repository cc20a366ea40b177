import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfrecord_io.terminal.spelling import in_one_form, look_alike, one_form

FORMS = ("NFC", "NFD")


@given(st.text(), st.sampled_from(FORMS))
def test_all_forms_of_a_text_are_one_and_it_has_no_other(text, form):
    assert one_form(unicodedata.normalize(form, text)) == one_form(text) == one_form(one_form(text))
    assert unicodedata.is_normalized("NFC", one_form(text))


def test_what_is_in_a_flag_gets_the_one_form():
    decomposed, path = unicodedata.normalize("NFD", "Müller"), object()
    assert in_one_form({decomposed: (decomposed, 1)}) == {"Müller": ("Müller", 1)}
    assert in_one_form((path,)) == (path,)


@pytest.mark.parametrize(
    ("one", "other"),
    [("cnv", "CNV"), ("CNV", " CNV"), ("no_tumor", "notumor"), ("no-tumor", "No Tumor"),
     ("CNV", "CNV\u200b"), ("\ufeffCNV", "CNV"), ("C\xadNV", "CNV"), ("ＣＮＶ", "CNV"),
     ("no\u00a0tumor", "no tumor"), ("P-07", "p07"),
     ("СNV", "CNV"), ("CΝV", "CNV"), ("no\u2013tumor", "no-tumor"), ("no.tumor", "no_tumor"),
     ("Best\u2019s", "Best's"), ("CNV\u3164", "CNV")],
)  # fmt: skip
def test_names_that_a_reader_takes_for_one_look_alike(one, other):
    assert look_alike([one, "DRUSEN", other]) == [sorted([one, other])]


@pytest.mark.parametrize(
    ("one", "other"), [("1-12", "11-2"), ("1.12", "11.2"), ("7", "07"), ("CNV", "CNW"), ("C", "")]
)
def test_other_names_do_not(one, other):
    assert look_alike([one, other, one]) == []
