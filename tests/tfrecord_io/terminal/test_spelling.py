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
    ("one", "other", "are_alike"),
    [
        *((one, "CNV", True) for one in ("cnv", " CNV", "CNV\u200b", "C\xadNV", "ＣＮＶ")),
        *(
            (one, "no_tumor", True)
            for one in ("notumor", "No\u00a0Tumor", "no\u2013tumor", "no.tumor")
        ),
        ("P-07", "p07", True),
        ("Best\u2019s", "Best's", True),
        ("1-12", "11-2", False),
        ("1.12", "11.2", False),
        ("7", "07", False),
        ("CNW", "CNV", False),
        ("HER2+", "HER2-", False),
        ("C", "", False),
    ],
)
def test_names_look_alike_that_a_reader_takes_for_one(one, other, are_alike):
    assert look_alike([one, "DRUSEN", other]) == ([sorted([one, other])] if are_alike else [])
