"""Which class and patient an image has by its name, and which classes are used."""

import pytest
from listed import drawn, list_files, places, reasons

from pipelines import errors

TREE = drawn("{train,test}/{CNV,DME,NORMAL}/{1..2}.png")


def test_classes_are_chosen_in_their_order_and_the_others_counted():
    listing = list_files(TREE, classes=("NORMAL", "CNV"))
    assert {label for _, label in places(listing).values()} == {"CNV", "NORMAL"}
    assert listing.label_names == ("NORMAL", "CNV")
    assert listing.ledger.ignored == {"class_not_chosen": 4}
    assert list_files(TREE).label_names == ("CNV", "DME", "NORMAL")
    with pytest.raises(errors.UserError, match="'AMD', but the classes are 'CNV', 'DME', 'NORMAL'"):
        list_files(TREE, classes=("CNV", "AMD"))


@pytest.mark.parametrize(("tree", "wanted"), [
    ("{train,val}/x/{CNV,DME}_{1..2}.png", {("train", "CNV"), ("val", "DME")}),
    ("train/{CNV,DME}_1.png", {("train", "CNV"), ("train", "DME")}),
    ("{CNV,DME}/{a..b}/x.png".replace("{a..b}", "{a,b}"), {("train", "CNV"), ("train", "DME")}),
])  # fmt: skip
def test_a_pattern_finds_the_class_in_a_name_or_else_in_the_path(tree, wanted):
    found = {*places(list_files(drawn(tree), label_regex="(CNV|DME)")).values()}
    assert wanted <= found


def test_a_file_without_a_class_in_its_name_is_a_reject():
    listing = list_files(drawn("a/{CNV,DME}_1.png\na/x.png"), label_regex="^([A-Z]+)_")
    assert reasons(listing) == {"a/x.png": "no_label"}
    with pytest.raises(errors.UserError, match="--label_regex"):
        list_files(drawn("{a,b}/{1..2}.png"), label_regex="([A-Z]+)_")


def test_a_pattern_that_finds_no_patient_is_refused():
    files = drawn("{CNV,DME}/scan{1..3}.png\nDME/p7_1.png")
    assert len(list_files(files, patient_regex=r"^p(\d+)_").table["patient"].drop_null()) == 1
    with pytest.raises(errors.UserError, match="--patient_regex"):
        list_files(files, patient_regex="eye([0-9])")


def test_a_split_without_a_class_of_train_is_refused_with_the_pattern_that_leaves_it_out():
    files = drawn("train/{A,B}/{1..3}.png\ntest/images/{1..3}.png")
    with pytest.raises(errors.UserError, match=r"--exclude_regex '\(\^\|/\)test/images/'"):
        list_files(files)
    assert len(list_files(files, exclude_regex="(^|/)test/images/").table) == 6
