import csv
import io
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfrecord_io.terminal.printing import csv_cell, in_one_form, no_formula, one_form, printable


def test_what_is_not_printable_is_escaped_and_letters_stay():
    assert printable("données ß 漢.png") == "données ß 漢.png"
    assert printable("\x1b]\n\0\udcff\u202e") == "\\x1b]\\n\\x00\\udcff\\u202e"
    assert (printable("abcdef", 6), printable("abcdefg", 6)) == ("abcdef", "abcde…")


@given(st.text())
def test_any_text_becomes_printable_once_and_for_all(text):
    shown = printable(text)
    assert shown.isprintable()
    assert printable(shown) == shown
    shown.encode("utf-8")


@pytest.mark.parametrize("text", ["=cmd|' /C calc'!A0", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1"])
def test_no_cell_begins_like_a_formula(text):
    file = io.StringIO()
    csv.writer(file).writerow([csv_cell(text)])
    (row,) = csv.reader(io.StringIO(file.getvalue()))
    assert row[0][0] in "'\\"
    assert printable(text) in row[0]


@pytest.mark.parametrize("text", ["train/CNV/CNV-1-1.jpeg", "a=b", "", "1", "'quoted'"])
def test_other_cells_are_left_as_they_are(text):
    assert csv_cell(text) == no_formula(text) == text
    assert no_formula(f"{text}\x1b") == f"{text}\x1b"


@given(st.text(), st.sampled_from(["NFC", "NFD"]))
def test_all_forms_of_a_text_are_one_and_it_has_no_other(text, form):
    assert one_form(unicodedata.normalize(form, text)) == one_form(text) == one_form(one_form(text))
    assert unicodedata.is_normalized("NFC", one_form(text))


def test_what_is_in_a_flag_gets_the_one_form():
    decomposed, path = unicodedata.normalize("NFD", "Müller"), object()
    assert in_one_form({decomposed: (decomposed, 1)}) == {"Müller": ("Müller", 1)}
    assert in_one_form((path,)) == (path,)
