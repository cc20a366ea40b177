"""Which folder is the class: a tree is read by the rule, or refused with what to type."""

import shlex
import unicodedata

import pytest
from image_files import under
from listed import drawn, list_files, places, reasons

from pipelines import errors
from pipelines.listing.options import ListingOptions
from pipelines.listing.refs import REF_SCHEMA, iterate_refs
from tfrecord_io.terminal import flags

TREE = drawn("{train,val,test}/{CNV,DME}/scan-{11,22}-1.jpeg")

#: A tree, and the (split, class, patient) of its first and its last image, by their paths.
READ = [
    ("{CNV,DME}/{1..2}.png", "train CNV -", "train DME -"),
    ("a/2020 b/{CNV,DME}/1.png", "train CNV -", "train DME -"),
    ("./{CNV,DME}/1.png", "train CNV -", "train DME -"),
    ("{train,val}/{CNV,DME}/1.png", "train CNV -", "val DME -"),
    ("OCT2017 /{Training,TEST,valid}/{CNV,DME}/1.png", "test CNV -", "val DME -"),
    ("{training,testing}/{0..4}/{1..3}.png", "test 0 -", "train 4 -"),
    ("in/test/{CNV,DME}/1.png", "test CNV -", "test DME -"),
    ("{CNV,DME}/scan-7-1.jpeg", "train CNV 7", "train DME 7"),
    ("{CNV,DME}/IM{1..2}", "train CNV -", "train DME -"),
    ("{CNV,DME}/{1..9}.png\n{README,LICENSE,a/b/x.sha}", "train CNV -", "train DME -"),
    ("{train,val}/{A,B}/{1..9}.png\nMy docs/x/LICENSE", "train A -", "val B -"),
    ("{CNV,DME}/{1..9}.png\nCNV/{1..9}.txt\ntrain/1.xml", "train CNV -", "train DME -"),
]

EXCLUDE = "--exclude_regex"
MASKS = f"{EXCLUDE} '(?i)(^|[^a-z])(masks)([^a-z]|$)'"

#: A tree that is refused, a flag in the message, and what the tree is then.
REFUSED = [
    ("scans/{1..3}.png", "--layout class", "train scans -", "train scans -"),
    ("{train,val}/CNV/1.png", "--layout split/class", "train CNV -", "val CNV -"),
    ("CNV/{train,val}/1.png", "--layout class/split", "train CNV -", "val CNV -"),
    ("{1..6}/{CNV,DME}/1.png", "--layout patient/class", "train CNV 1", "train DME 6"),
    ("{1..6}/{CNV,DME}/1.png", "--layout '*/class'", "train CNV -", "train DME -"),
    ("{CNV,DME}/p{1..3}/1.png", "--layout class/patient", "train CNV p1", "train DME p3"),
    ("{CNV,DME}/p{1..3}/1.png", "--layout class", "train CNV -", "train DME -"),
    ("train/{A,B}/p{1..3}/1.png", "--layout class/patient", "train A p1", "train B p3"),
    ("{train,val}/{A,B}/p{1..3}/1.png", "--layout split/class/patient", "train A p1", "val B p3"),
    ("{A,B}/x/{1..9}/1.png", "--layout '*/*/class'", "train 1 -", "train 9 -"),
    ("train/train/{A,B}/1.png\ntest/test/{A,B}/2.png", "--layout '*/split/class'", "test A -",
     "train B -"),
    ("{train,plane}/1.png", "--layout class", "train plane -", "train train -"),
    ("{A,B}/{1..9}.png\nc.png", f"{EXCLUDE} '^[^/]*$'", "train A -", "train B -"),
    ("i/{A,B}/1.png\ni/A/x/1.png", f"{EXCLUDE} '^i/[^/]*/[^/]*/[^/]*$'", "train A -", "train B -"),
    ("{A,B}/{images,masks}/1.png", f"{MASKS} --layout class", "train A -", "train B -"),
    ("{A,B}/1.png\nAnnotated masks/1.png", MASKS, "train A -", "train B -"),
    ("{mask,none}/1.png", "--include_regex .", "train mask -", "train none -"),
    ("a/train/{A,B}/{1..9}.png\nb/train/{C,D}/{1..12}.png", f"{EXCLUDE} '^(a)/'", "train C -",
     "train D -"),
]  # fmt: skip


def ends(files, **options):
    refs = list(iterate_refs(list_files(files, **options).table))
    return [f"{ref.split} {ref.label} {ref.patient or '-'}" for ref in (refs[0], refs[-1])]


def typed(text):
    """Returns the options of the listing that these flags give."""
    parser = flags.Parser(prog="build")
    flags.add_flags(parser, "input", ListingOptions)
    return flags.given(ListingOptions, parser.parse_args(shlex.split(text)))


@pytest.mark.parametrize(("tree", "first", "last"), READ)
def test_the_rule_reads(tree, first, last):
    assert ends(drawn(tree)) == [first, last]


@pytest.mark.parametrize(("tree", "flag", "first", "last"), REFUSED)
def test_any_other_tree_is_refused_with_flags_that_work(tree, flag, first, last):
    with pytest.raises(errors.UserError) as raised:
        list_files(drawn(tree))
    message = str(raised.value)
    assert [part for part in flag.split(" --") if part.removeprefix("--") not in message] == []
    assert ends(drawn(tree), **typed(flag)) == [first, last]


@pytest.mark.parametrize(("column", "tree", "options", "wanted"), [
    ("patient", "{A,B}/{1..2}/x.png", {"layout": ("class", "patient")}, {"1", "2"}),
    ("patient", "{A,B}/p7{,/p9}/x_1.png",
     {"layout": ("class",), "patient_regex": r"p(\d+)[/_]"}, {"7"}),
    ("patient", "{A,B}/{x_p7,p8_x}.png", {"patient_regex": r"p(\d)"}, {"7", "8"}),
    ("split", "{A,B}/{Train_Data,validation_set}/1.png", {"layout": ("class", "split")},
     {"train", "val"}),
    ("split", "{A,B}/{fold1,fold2}/1.png", {"layout": ("class", "split")}, {"fold1", "fold2"}),
])  # fmt: skip
def test_a_level_of_the_layout_or_a_name_gives_the_patient_and_the_split(
    column, tree, options, wanted
):
    assert {*list_files(drawn(tree), **options).table[column].to_pylist()} == wanted


def test_images_above_the_levels_of_a_layout_are_rejects():
    listing = list_files(drawn("{A,B}/x/1.png\n2.png"), layout=("class",))
    assert (len(listing.table), reasons(listing)) == (2, {"2.png": "no_label"})
    for tree, layout in (("{A,B}/1.png", "class/*/patient"), ("{A,B}/Fold 1/1.png", "class/split")):
        with pytest.raises(errors.UserError, match="--layout"):
            list_files(drawn(tree), layout=tuple(layout.split("/")))


@pytest.mark.parametrize("folder", ["", "OCT2017/", "OCT2017 /", "a/b/c/", "./", "données ß/"])
def test_a_path_begins_at_the_split_or_the_class(folder):
    for tree in (TREE, drawn("{CNV,DME}/{1..2}.png")):
        listing = list_files({folder + name: tree[name] for name in reversed(tree)})
        assert listing.table["path"].to_pylist() == sorted(tree)
        assert listing.table.schema == REF_SCHEMA
        assert {*places(listing)} == {folder + name for name in tree}


def test_a_tree_that_is_there_twice_counts_once_and_other_contents_are_rejects():
    first, second = dict(list(TREE.items())[1:]), dict(list(TREE.items())[:-2])
    same_size, longer = "train/DME/scan-11-1.jpeg", "train/DME/scan-22-1.jpeg"
    second |= {same_size: b"x" * len(TREE[same_size]), longer: b"longer " * 9}
    listing = list_files([*under("OCT2017 ", first).items(), *under("a/OCT2017 ", second).items()])
    assert sorted(listing.table["path"].to_pylist()) == sorted(TREE)
    assert reasons(listing) == {f"a/OCT2017 /{n}": "path_conflict" for n in (same_size, longer)}
    assert listing.ledger.copies == len(TREE) - 5
    # As of a name that an archive holds twice.
    twice = list_files([*TREE.items(), *list(TREE.items())[:1], (longer, b"other")])
    assert len(twice.table) == len(TREE)
    assert (twice.ledger.copies, reasons(twice)) == (1, {longer: "path_conflict"})


@pytest.mark.parametrize("options", [
    {"layout": ("class", "patient")}, {"layout": ("class",), "patient_regex": "ä-(.*)-"}
])  # fmt: skip
def test_a_person_and_a_class_are_one_whatever_the_unicode_form_of_their_names(options):
    names = [(f"Œdéme {label}/{who}/ä-{who}-{form}.png", form)
             for label in "AB" for who in ("Mül", "Noël") for form in ("NFC", "NFD")]  # fmt: skip
    files = {unicodedata.normalize(form, name): name.encode() for name, form in names}
    listing = list_files(files, **options)
    assert places(listing).keys() == files.keys()  # each is opened by its own name
    assert {*listing.table["label"].to_pylist()} == {"Œdéme A", "Œdéme B"}
    assert {*listing.table["patient"].to_pylist()} == {"Mül", "Noël"}
