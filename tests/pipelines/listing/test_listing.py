import re
import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from image_files import under
from listed import list_files, members_of, notes_of, places

from pipelines import errors
from pipelines.listing.refs import REF_SCHEMA
from pipelines.sources.source import MAX_FILE_BYTES, Member

#: A small tree: three splits, four classes, one content a file.
TREE = {
    f"{split}/{label}/{label}-{patient}-{number}.jpeg": f"{split} {label} {patient}".encode()
    for split in ("train", "val", "test")
    for label in ("CNV", "DME", "DRUSEN", "NORMAL")
    for patient, number in ((11, 1), (22, 2))
}


def reasons(listing):
    return {reject.source_path: reject.reason for reject in listing.ledger.rejects}


def expected_places(tree, folder=""):
    return {folder + name: tuple(name.split("/")[:2]) for name in tree}


# ---- layouts


@pytest.mark.parametrize("folder", ["", "OCT2017/", "OCT2017 /", "a/b/c/", "./", "données ß/"])
def test_split_and_class_folders_are_found_below_any_folder_and_sorted(folder):
    listing = list_files({folder + name: TREE[name] for name in reversed(TREE)})
    assert places(listing) == expected_places(TREE, folder)
    assert listing.table["path"].to_pylist() == sorted(TREE)
    assert listing.table.schema == REF_SCHEMA
    assert (listing.ledger.rejects, listing.ledger.copies, listing.ledger.ignored) == ((), 0, {})
    assert listing.ledger.num_files == len(TREE)


@pytest.mark.parametrize("folder", ["", "scans/", "data/2020/scans/", "./"])
def test_class_folders_alone_are_one_split(folder):
    files = {f"{folder}CNV/1.png": b"1", f"{folder}DME/deep/2.png": b"2"}
    listing = list_files(files)
    assert list(places(listing).values()) == [("train", "CNV"), ("train", "DME")]
    assert listing.table["path"].to_pylist() == ["CNV/1.png", "DME/deep/2.png"]
    one_class = list_files({f"{folder}CNV/{n}.png": bytes(n) for n in range(2)})
    assert list(places(one_class).values()) == [("train", "CNV")] * 2


@pytest.mark.parametrize(
    "folders",
    [
        {"train": "train/train", "val": "val/val", "test": "test/test"},
        {"train": "oct/train/Train", "val": "oct/val/valid", "test": "oct/test"},
        {"train": "dev/x/train", "val": "dev/x/val", "test": "dev/x/test"},
        {"train": "test/a/train", "val": "test/a/val", "test": "test/a/test"},
    ],
    ids=["each wrapped", "some wrapped", "below a folder named dev", "below a folder named test"],
)
def test_of_nested_split_folders_the_inner_ones_are_the_splits(folders):
    names = {name: f"{folders[name.split('/')[0]]}/{name.split('/', 1)[1]}" for name in TREE}
    files = {names[name]: content for name, content in TREE.items()}
    outer = next(iter(folders.values())).split("/")[0]
    listing = list_files({**files, f"{outer}/x/about/README.txt": b"?"})
    assert places(listing) == {names[name]: tuple(name.split("/")[:2]) for name in TREE}
    assert (listing.ledger.rejects, notes_of(listing)) == ((), [])
    assert listing.ledger.ignored == {"no_image_name": 1}


@pytest.mark.parametrize("deeper", ["", "side/"])
def test_a_class_or_a_folder_in_it_may_have_the_name_of_a_split_which_is_said(deeper):
    name = f"train/train/{deeper}1.png"
    listing = list_files({name: b"1", "train/plane/2.png": b"2"})
    assert places(listing) == {name: ("train", "train"), "train/plane/2.png": ("train", "plane")}
    (note,) = notes_of(listing)
    assert note.startswith("the class 'train' has the name of a split;")
    name = f"train/CNV/test/{deeper}1.png"
    listing = list_files({"train/CNV/2.png": b"2", "train/DME/3.png": b"3", name: b"1"})
    assert places(listing)[name] == ("train", "CNV")


@pytest.mark.parametrize(
    ("files", "rejected", "num_ignored"),
    [
        ({**TREE, "README.txt": b"", "cover.png": b"c", "train/x.jpeg": b"l"},
         ["cover.png", "train/x.jpeg"], 1),
        ({"CNV/1.png": b"1", "DME/2.png": b"2", "3.png": b"3", "notes": b""}, ["3.png"], 1),
        ({"A/1.png": b"1", "A/1.xml": b"x", "B/2": b"2", "B/n.TXT": b"", "B/3.npy": b"n"}, [], 2),
    ],
    ids=["beside splits", "beside classes", "texts in classes"],
)  # fmt: skip
def test_images_outside_the_class_folders_are_rejects_and_texts_are_no_data(
    files, rejected, num_ignored
):
    listing = list_files(files)
    assert reasons(listing) == dict.fromkeys(rejected, "no_label")
    assert listing.ledger.ignored == {"no_image_name": num_ignored}
    assert len(listing.table) == len(files) - len(rejected) - num_ignored


def test_of_two_incomplete_trees_the_union_is_taken_and_other_contents_are_rejects():
    first = dict(list(TREE.items())[2:])
    second = dict(list(TREE.items())[:-3])
    same_size, longer = "train/DME/DME-11-1.jpeg", "train/DME/DME-22-2.jpeg"
    second |= {same_size: b"x" * len(TREE[same_size]), longer: b"longer"}
    listing = list_files([*under("a", first).items(), *under("b", second).items()])
    assert sorted(listing.table["path"].to_pylist()) == sorted(TREE)
    assert reasons(listing) == {f"b/{name}": "path_conflict" for name in (same_size, longer)}
    assert f"a/{same_size}" in listing.ledger.rejects[0].detail
    assert listing.ledger.copies == len(TREE) - 7
    # As of a name that an archive holds twice.
    twice = list_files([*TREE.items(), *list(TREE.items())[:1], (longer, b"other")])
    assert places(twice) == expected_places(TREE)
    assert (twice.ledger.copies, reasons(twice)) == (1, {longer: "path_conflict"})


def test_of_mendeleys_third_version_the_scans_are_taken_and_the_x_rays_left():
    scans = under("CellData/OCT", {n: c for n, c in TREE.items() if not n.startswith("val")})
    names = [f"{split}/{label}/{i}.jpeg" for split in ("train", "test")
             for label in ("NORMAL", "PNEUMONIA") for i in range(20)]  # fmt: skip
    x_rays = under("CellData/chest_xray", {name: name.encode() for name in names})
    listing = list_files({**scans, **x_rays})
    assert set(places(listing)) == set(scans)
    assert listing.ledger.ignored == {"other_tree": len(x_rays)}
    chosen = list_files({**scans, **x_rays}, tree="CellData/chest_xray")
    assert set(places(chosen)) == set(x_rays)
    assert chosen.ledger.ignored == {"other_tree": len(scans)}


def test_unrelated_trees_are_an_error_until_one_is_chosen():
    files = {
        **{f"eyes /train/{label}/{i}.png": b"e" for label in "ab" for i in range(3)},
        **{f"lungs/train/{label}/{i}.png": b"l" for label in "cd" for i in range(9)},
    }
    with pytest.raises(errors.UserError, match=r"2 unrelated trees: 'lungs', 'eyes '.*--tree"):
        list_files(files)
    for tree in ("eyes ", "eyes", "eyes/"):
        assert len(places(list_files(files, tree=tree))) == 6
    with pytest.raises(errors.UserError, match="--tree 'ears': no file of the input is in such"):
        list_files(files, tree="ears")


# ---- options


@pytest.mark.parametrize("split", ["", "train/"])
def test_a_class_that_holds_other_classes_is_refused_by_its_name(split):
    folders = ("yes", "no", "more data/yes", "more data/no")
    files = {f"{split}{folder}/1.png": b"1" for folder in folders}
    with pytest.raises(errors.UserError, match=r"'more data' holds folders .*--classes no,yes,"):
        list_files(files)
    assert len(list_files(files, classes=("no", "yes")).table) == 2


def test_classes_are_chosen_and_an_unknown_one_is_named():
    listing = list_files(TREE, classes=("NORMAL", "CNV"))
    assert {label for _, label in places(listing).values()} == {"CNV", "NORMAL"}
    assert listing.ledger.ignored == {"class_not_chosen": len(TREE) // 2}
    with pytest.raises(
        errors.UserError, match="names 'AMD', but the classes are 'CNV', 'DME', 'DRUSEN'"
    ):
        list_files(TREE, classes=("CNV", "AMD"))


def test_a_pattern_is_tried_on_the_name_and_then_on_the_path():
    files = {
        "in/CNV/patient07/a.png": b"1", "in/CNV/patient07/patient9/b.png": b"2",
        "in/CNV/patient07/patient8_1.png": b"3", "in/DME/c.png": b"4",
    }  # fmt: skip
    listing = list_files(files, patient_regex=r"patient(\d+)[/_]")
    assert listing.table["patient"].to_pylist() == ["07", "8", "07", None]
    assert listing.layout[-1] == ("patient in names", "2: 07 2, 8 1")


def test_a_pattern_that_finds_few_patients_or_none_shows_paths_without_one():
    files = {f"CNV/scan{k}.png": bytes([k]) for k in range(4)} | {"DME/p7_1.png": b"7"}
    assert notes_of(list_files(files), private=True) == []
    (note,) = notes_of(list_files(files, patient_regex=r"^p(\d+)_"), private=True)
    shown = "images; others are 'CNV/scan0.png', 'CNV/scan1.png', 'CNV/scan2.png'"
    assert note.endswith(f"of 1 of 5 {shown}")
    with pytest.raises(errors.UserError, match=f"of 0 of 5 {shown}. Its first group should be"):
        list_files(files, patient_regex="eye([0-9])")
    with pytest.raises(errors.UserError, match="finds a patient in the names or paths of 0 of"):
        list_files(files, patient_regex="(x*)")  # an empty name is none
    del files["CNV/scan3.png"], files["CNV/scan2.png"], files["CNV/scan1.png"]
    assert notes_of(list_files(files, patient_regex=r"^p(\d+)_"), private=True) == []


# ---- what is no image


@pytest.mark.parametrize(
    ("why", "names"),
    [
        ("apple_double", ["train/CNV/._CNV-1-1.jpeg", "__MACOSX/train/CNV/CNV-1-1.jpeg"]),
        ("system_file", ["train/CNV/.DS_Store", ".DS_Store", "a/Thumbs.db", "CNV/desktop.INI"]),
        ("system_file", ["$RECYCLE.BIN/S/a.png", "CNV/@eaDir/1.png/M.jpg", "#recycle/a.jpg"]),
        ("hidden", ["train/.ipynb_checkpoints/1.png", ".git/train/CNV/1.png"]),
    ],
)
def test_what_systems_leave_behind_is_ignored_and_counted(why, names):
    listing = list_files({**TREE, **dict.fromkeys(names, b"?")})
    assert places(listing) == expected_places(TREE)
    assert listing.ledger.ignored == {why: len(names)}


@pytest.mark.parametrize(
    ("files", "flag"),
    [
        (["train/CNV/1.png", "more/CNV/2.png", "more/DME/3.png"], "^more/"),
        (["train/CNV/1.png", "train/2.png"], "^train/[^/]*$"),
    ],
)
def test_the_flag_that_a_reject_without_a_class_names_leaves_all_such_out(files, flag):
    files = {name: name.encode() for name in files}
    rejects = list_files(files).ledger.rejects
    assert {reject.detail.split("'")[1] for reject in rejects} == {flag}
    assert not list_files(files, exclude_regex=flag).ledger.rejects


def test_patterns_that_leave_all_or_nothing_out_are_told():
    for flags in ({"include_regex": "zzz"}, {"exclude_regex": "."}):
        with pytest.raises(errors.UserError, match="--exclude_regex leave out all of 24 files"):
            list_files(TREE, **flags)
    (note,) = list_files(TREE, exclude_regex="withdrawn").ledger.notes
    assert (note.text, note.is_stored) == ("--exclude_regex 'withdrawn' leaves out no file", False)
    assert not list_files(TREE, exclude_regex="DME").ledger.notes


def test_a_name_that_leads_elsewhere_is_a_reject():
    names = [
        "/train/CNV/1.png", "../train/CNV/1.png", "train/CNV/../../../../etc/1.png",
        "train/../CNV/1.png", "\\\\server\\train/CNV/1.png", "C:/train/CNV/1.png",
        "train/CNV/1\0.png", "train//1.png", "train/CNV//1.png", "train/./1.png",
    ]  # fmt: skip
    listing = list_files({**TREE, **dict.fromkeys(names, b"?")})
    assert places(listing) == expected_places(TREE)
    assert list(reasons(listing).values()) == ["unsafe_name"] * len(names)


@pytest.mark.parametrize("name", ["train/CNV/a\nb.png", "train/CNV/a\tb'\".png", "train/C\nNV/1"])
def test_odd_names_are_still_names(name):
    names = name, "train/NORMAL/1.png"
    listing = list_files(dict.fromkeys(names, b"1"))
    assert places(listing) == {name: ("train", name.split("/")[1]) for name in names}


def test_a_file_that_must_not_be_read_is_a_reject_that_can_be_printed():
    problem = ("encrypted", "the member is encrypted")
    secret, system = (
        Member(f"train/CNV/{name}", 5, problem=problem) for name in ("s", ".DS_Store")
    )
    sizes = {"huge": MAX_FILE_BYTES + 1, "limit": MAX_FILE_BYTES, "\udcff": 1}
    files = [Member(f"train/CNV/{name}.png", size) for name, size in sizes.items()]
    listing = list_files([*files, secret, system])
    assert reasons(listing) == {
        "train/CNV/s": "encrypted",
        "train/CNV/huge.png": "file_too_large",
        "train/CNV/\\udcff.png": "unreadable_name",
    }
    assert listing.ledger.ignored == {"system_file": 1}


@pytest.mark.parametrize("files", [{}, {"README": b""}, {"1.png": b"1"}, {"__MACOSX/a/b/c": b""}])
def test_a_source_without_images_says_what_was_expected(files):
    with pytest.raises(errors.UserError, match=f"among {len(files)} files?; check --input"):
        list_files(files)


# ---- the ledger

FOLDERS = st.sampled_from(
    ["train", "val", "test", "CNV", "DME", "a", "OCT2017 ", "..", "__MACOSX", ".git", "é", "", "."]
)
NAMES = st.sampled_from(
    ["1.png", "2.jpeg", "._1.png", ".DS_Store", "notes.txt", "CNV-1-2.jpeg", "x\0", "\udcff.png"]
)
FILES = st.lists(
    st.tuples(
        st.builds(lambda folders, name: "/".join([*folders, name]), st.lists(FOLDERS, max_size=4),
                  NAMES),
        st.sampled_from([b"", b"1", b"2", b"22"]),
    ),
    max_size=25,
)  # fmt: skip


@given(files=FILES, tree=st.sampled_from([None, "a", "", "OCT2017"]))
def test_every_file_is_an_image_a_copy_a_reject_or_no_data(files, tree):
    members = members_of(files)
    if members:
        members[0] = Member(members[0].name, 1, problem=("link", "a link"))
    try:
        listing = list_files(members, tree=tree)
    except errors.UserError:
        return
    ignored = sum(listing.ledger.ignored.values())
    assert len(files) == (
        listing.table.num_rows + len(listing.ledger.rejects) + listing.ledger.copies + ignored
    )
    assert listing.ledger.num_files == len(files)
    paths = listing.table["path"].to_pylist()
    assert len(set(paths)) == len(paths)
    assert all(label for _, label in places(listing).values())
    names = [name for name, _ in files]
    assert set(places(listing)) <= set(names)


@settings(max_examples=10)
@given(order=st.permutations(range(len(TREE) * 2 + 5)))
def test_the_listing_does_not_depend_on_the_order_of_the_source(order):
    files = [*under("a", TREE).items(), *under("b", TREE).items()]
    files += [("b/train/CNV/new.jpeg", b"n"), ("a/1.png", b"1"), ("b/x.txt", b""), ("c", b"")]
    files.append(("b/train/CNV/CNV-22-2.jpeg~", b"y"))
    members = members_of(files)

    listing, shuffled = list_files(members), list_files([members[i] for i in order])
    assert shuffled.table.to_pylist() == listing.table.to_pylist()
    assert shuffled.ledger == listing.ledger


# ---- forms of a name

FORMS = ("NFC", "NFD")


def in_two_forms(patients=("Müller03", "Noël")):
    """Two images of each patient and class: one below each of two forms of the names."""
    return {
        unicodedata.normalize(form, f"Œdéme {label}/{patient}/ä-{patient}-{number}.png"): bytes(
            [place, number]
        )
        for place, (label, patient) in enumerate((n, p) for n in "AB" for p in patients)
        for number, form in enumerate(FORMS)
    }


@pytest.mark.parametrize(
    "options",
    [{"layout": ("class", "patient")}, {"layout": ("class",), "patient_regex": "ä-(.*)-"}],
    ids=["folder", "pattern"],
)
def test_a_person_and_a_class_are_one_whatever_the_form_of_their_names(options):
    files = in_two_forms()
    if "patient_regex" in options:
        options["patient_regex"] = unicodedata.normalize("NFD", options["patient_regex"])
    listing = list_files(files, **options)
    assert places(listing).keys() == files.keys()  # each is opened by its own name
    assert set(listing.table["label"].to_pylist()) == {"Œdéme A", "Œdéme B"}
    assert set(listing.table["patient"].to_pylist()) == {"Müller03", "Noël"}
    assert notes_of(listing, private=True) == []


def test_of_files_of_one_name_in_two_forms_one_is_a_copy_or_a_reject():
    composed, decomposed = (f"{unicodedata.normalize(form, 'Œdéme')}/1.png" for form in FORMS)
    others = {"CNV/1.png": b"1", "CNV/2.png": b"2"}
    listing = list_files({composed: b"3", decomposed: b"4", **others})
    assert set(listing.table["label"].to_pylist()) == {"CNV", "Œdéme"}
    assert list(reasons(listing).values()) == ["path_conflict"]
    listing = list_files({composed: b"3", decomposed: b"3", **others})
    assert (listing.table.num_rows, listing.ledger.copies, listing.ledger.rejects) == (3, 1, ())


def test_patients_whose_names_look_alike_are_told():
    files = {
        f"{label}/{p}/{label}.png": p.encode() for label in "AB" for p in ("müller03", "Müller-03")
    }
    (note,) = notes_of(list_files(files, layout=("class", "patient")), private=True)
    assert "2 patients have names that differ only in case, spaces, hyphens" in note
    assert "'M\\xfcller-03' and 'm\\xfcller03'" in note
    assert "a column patient of a table of --labels" in note


@pytest.mark.parametrize(
    ("option", "regex", "told"),
    [
        ("patient_regex", "^(scan)", "one patient in all images ('scan' in 'A/scan-"),
        ("patient_regex", "(CNV|DME)", "one patient in all images ('CNV' in 'A/scan-"),
        ("patient_regex", "CNV-([A-Z])", "one patient in all images of each class ('A' in 'A/scan"),
        ("label_regex", "(DME|CNV)", "one class in all images ('CNV' in 'A/scan-"),
    ],
)
def test_a_pattern_that_finds_the_same_in_all_images_is_told(option, regex, told):
    files = {f"{label}/scan-CNV-{label}-{k}.png": bytes([k]) for label in "AB" for k in range(2)}
    (note,) = notes_of(list_files(files, **{option: regex}), private=True)
    assert f"{regex}' finds {told}" in note
    assert re.findall("'([AB])/scan", note) == ["A", "B"] if "each" in told else ["A", "A", "B"]


def test_the_default_pattern_that_finds_a_patient_for_each_class_is_told():
    files = {
        f"{label}/{label}-{place}-{k}.png": bytes([place, k])
        for place, label in enumerate(("CNV", "DME", "DRUSEN"))
        for k in range(2)
    }
    (note,) = notes_of(list_files(files), private=True)
    assert "(the default) finds one patient in all images of each class ('0' in 'CNV/CNV-0" in note
    assert "'1' in 'DME/DME-1-0.png', '2' in 'DRUSEN/DRUSEN-2-0.png')" in note
    files["CNV/CNV-9-1.png"] = b"another patient"
    assert not notes_of(list_files(files), private=True)
