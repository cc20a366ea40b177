"""The look at a tree: what its folders are, or why nobody can tell."""

import itertools
import re

import numpy as np
import pytest
from dicom_files import dicom_file
from hypothesis import given, settings
from hypothesis import strategies as st
from image_files import encoded, grey_pixels, rgb_pixels
from listed import list_files, notes_of, places

from pipelines import errors

OCT = ("CNV", "DME", "NORMAL")


def tree(*levels, images=2):
    """Returns files in all combinations of the names of levels."""
    folders = ("/".join(names) for names in itertools.product(*levels))
    names = [f"{folder}/{n}.jpeg" for folder in folders for n in range(images)]
    return {name: name.encode() for name in names}


def patients_in(label_of, layout, num_patients=30):
    """Returns files of patients, each in the folders of a layout such as `{p}/{c}`."""
    return tree([layout.format(p=p, c=label_of(p)) for p in range(num_patients)])


def oct_of(patient):
    return OCT[patient % 3]


READ = {
    "a patient's classes": (patients_in(oct_of, "P{p}/{c}"), "patient/class"),
    "a class's patients": (patients_in(oct_of, "{c}/patient_{p}"), "class/patient"),
    "patients by number": (patients_in(oct_of, "{c}/{p:05}"), "class/patient"),
    "hospitals": (patients_in(oct_of, "hosp2/{c}/p{p}") | patients_in(oct_of, "hosp1/{c}/p{p}"),
                  "*/class/patient"),
    "sides": (patients_in(oct_of, "case {p}/left/{c}"), "patient/*/class"),
    "training_set": (tree(("training_set", "test_set"), OCT), "split/class"),
    "Train_Data, wrapped": (tree(("Train_Data/Train_Data", "Test_Data/Test_Data"), OCT),
                            "split/class"),
    "seg_train": (tree(("seg_train", "seg_test"), OCT), "split/class"),
    "abbreviations": (tree(("tr", "va", "te"), OCT), "split/class"),
    "train_images": (tree(("train_images", "testImages"), OCT), "split/class"),
    "kinds of files": (tree(("train", "test"), ("images",), OCT), "split/*/class"),
    "splits in classes": (tree(OCT, ("train", "test")), "class/split"),
    "diseases of plants": (tree(("Apple", "Corn"), ("healthy", "rust")), "*/class"),
    "one class": (patients_in(lambda p: "CNV", "P{p}/{c}"), "patient/class"),
    "usual": (tree(("train", "test"), OCT), "split/class"),
    "usual, with sides": (tree(OCT, ("left", "right")), "class"),
    "grades": (tree("01234"), "class"),
}  # fmt: skip


def test_a_file_that_is_no_image_may_lie_above_the_patients():
    files = tree(("hosp1", "hosp2"), ("P1", "P2", "P3"), OCT) | {"hosp1/labels.npy": b""}
    listing = list_files(files)
    assert (listing.identity["layout"], listing.ledger.ignored) == (
        "*/patient/class", {"no_image_name": 1},
    )  # fmt: skip


@pytest.mark.parametrize(("files", "layout"), READ.values(), ids=READ)
def test_what_the_folders_are_follows_from_names_and_counts(files, layout):
    listing = list_files(files)
    assert (listing.identity["layout"], listing.ledger.rejects) == (layout, ())
    roles = layout.split("/")
    if "patient" in roles:
        assert listing.table["patient"].null_count == 0
    labels = {label for _, label in places(listing).values()}
    assert labels <= {*OCT, "healthy", "rust", *"01234"}
    # The same, said by the user, is the same dataset.
    if "_Data" not in min(files):
        told = list_files(files, layout=tuple(roles))
        assert told.table.equals(listing.table)
        assert told.identity == listing.identity
    # Files of DICOM need no ending.
    bare = list_files({name.removesuffix(".jpeg"): content for name, content in files.items()})
    assert list(places(bare).values()) == list(places(listing).values())
    assert bare.identity == listing.identity


UNCLEAR = {
    "patients alone": (tree([f"P{p}" for p in range(30)]), r"--layout 'class' reads 30 classes"),
    "one class above": (tree(["CNV"], [f"P{p}" for p in range(9)]), "--layout 'class/patient'"),
    "people above one class": (tree(("smith", "jones"), ["NORMAL"]), "--layout 'patient/class'"),
    "102 numbers": (tree([str(n) for n in range(102)], images=9), "--layout 'class' reads 102"),
    "two sets of words": (tree(("a", "b"), ("x", "y")), r"(?s)--layout 'class'.*'\*/class'"),
    "numbers in classes": (tree(OCT, "123"), "whether the folders 1, 2, 3 are patients"),
    "COCO": (tree(("train", "valid", "test")), "no level .* has the names of classes"),
    "YOLO": (tree(("train", "valid"), ("images",)), "no level .* has the names of classes"),
    "masks in folders": (tree(OCT, ("images", "masks")), r"--exclude_regex '\(\^\|/\)masks/'"),
    "masks beside": (
        {f"{c}/{n}{m}.png": b"" for c in OCT for n in range(3) for m in ("", "_mask")},
        r"9 files, such as CNV/0_mask.png, are masks.*--exclude_regex '\[ _.-\]mask",
    ),
    "a lone folder": (tree(["scans of 2024"]), "--layout 'class' reads 1 class: scans of 2024"),
    "a patient's number behind the class": (
        tree([f"{c}{p}/TIFFs" for c in OCT for p in range(9)]), "reads 27 classes: CNV0, CNV1",
    ),
    "the class behind a study's number": (
        tree(("ELBOW", "HAND"), ("p1", "p2"), ("study1_negative", "study2_negative",
                                               "study1_positive", "study2_positive")),
        "no level of the folders has the names of classes",
    ),
    "many tiny classes": (tree([f"class_{n}" for n in range(30)]), "half of the 30 classes have 2"),
    "a class is a patient": (
        {f"c{n}/A-{n}-{k}.png": b"" for n in range(6) for k in range(3)},
        "each of the 6 classes is one patient",
    ),
    "a split without labels": (
        tree(["train"], OCT) | tree(["test"], ["images"]),
        r"test has none of the classes of train, but images.*--exclude_regex '\(\^\|/\)test/imag",
    ),
    "classes beside another folder": (
        tree(["scans"], OCT) | tree(["docs"]),
        r"'scans' holds .*'DME'.*--exclude_regex '\(\^\|/\)\(docs\)/'.*--classes 'docs,scans'",
    ),
    "splits in classes with patients": (
        tree(OCT, ("train", "test"), ("p1", "p2")), "3 folders hold splits.*--layout class/split",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("files", "message"), UNCLEAR.values(), ids=UNCLEAR)
def test_what_is_not_clear_is_refused_with_the_flag_for_each_reading(files, message):
    with pytest.raises(errors.UserError, match=message):
        list_files(files)


def test_the_layout_and_the_classes_decide():
    files = patients_in(oct_of, "{c}/{p}/a")
    listing = list_files(files, layout=("class", "patient"))
    assert len(set(listing.table["patient"].to_pylist())) == 30
    chosen = list_files(tree(("a", "b"), ("x", "y")), classes=("x", "y"))
    assert {label for _, label in places(chosen).values()} == {"x", "y"}
    above = list_files(tree(["in/CNV"], [f"P{p}" for p in range(9)]), layout=("class", "patient"))
    assert above.table["path"][0].as_py() == "CNV/P0/0.jpeg"
    files = tree(OCT, ("images/a", "masks/a"))
    with pytest.raises(errors.UserError, match=r"--exclude_regex '\(\^\|/\)masks/'"):
        list_files(files, layout=("class", "*"))
    with pytest.raises(errors.UserError, match="has 3 levels of folders, but no image is in more"):
        list_files(tree(OCT, "12"), layout=("split", "class", "patient"))


def test_a_pattern_goes_before_the_patients_in_folders():
    files = patients_in(oct_of, "{c}/patient_{p}")
    listing = list_files(files, patient_regex=r"patient_(\d+)/")
    assert set(listing.table["patient"].to_pylist()) == {str(p) for p in range(30)}


def test_a_pattern_of_the_class_reads_it_from_names_in_any_folder():
    files = {f"in/{label}_{n}.png": b"1" for label in ("cat", "dog") for n in range(3)}
    listing = list_files(files | {"in/x.png": b""}, label_regex=r"^([a-z]+)_")
    assert sorted({label for _, label in places(listing).values()}) == ["cat", "dog"]
    assert [reject.reason for reject in listing.ledger.rejects] == ["no_label"]
    with pytest.raises(errors.UserError, match="finds no class in the names or paths of 6"):
        list_files(files, label_regex="(eye)[0-9]")


def test_files_are_included_and_excluded_by_their_paths_and_counted():
    files = tree(OCT, ("images", "masks"))
    listing = list_files(files, exclude_regex="(^|/)masks/", include_regex="CNV|DME")
    assert {label for _, label in places(listing).values()} == {"CNV", "DME"}
    assert (listing.ledger.excluded, listing.ledger.num_files) == (8, 12)
    # The listing is in the identity, so the patterns need not be.
    assert listing.identity == list_files(tree(OCT)).identity


def test_copies_with_the_name_of_their_source_belong_together():
    code = "0123456789abcdef"
    files = [f"{s}/CNV/a_jpg.rf.{n}{code}.jpg" for n, s in enumerate(("train", "test", "train"))]
    files += [f"train/DME/{name}.png" for name in ("b", "b_aug_3", "b-flip (2)", "c (1)", "c (2)")]
    listing = list_files({name: name.encode() for name in files})
    column = {row["path"]: row["other:copy_of"] for row in listing.table.to_pylist()}
    assert [column[name] for name in files] == ["a_jpg"] * 3 + ["train/DME/b"] * 3 + [None] * 2
    assert notes_of(listing, private=True)[0].startswith("6 images are copies of 2 sources")
    off = list_files({name: name.encode() for name in files}, copies_by_name=False)
    assert "other:copy_of" not in off.table.column_names
    many = [f"CNV/s ({n}).png" for n in range(60)] + ["CNV/s.png", "DME/s.png"]
    assert "other:copy_of" not in list_files(dict.fromkeys(many, b"")).table.column_names


# ---- pairs of pictures


def scan(k):
    return encoded(grey_pixels(k, 32, 48))


def shape(k, levels=(0, 255)):
    values = np.full((32, 48), levels[0], np.uint8)
    values[8 + k % 5 : 24, 9:40] = levels[-1]
    return values


def mask(k, ending="PNG", levels=(0, 255)):
    return encoded(shape(k, levels), ending, **({"quality": 90} if ending == "JPEG" else {}))


def heat(k):
    return encoded(rgb_pixels(k, 32, 48))


def paired(form, other, draw=mask, names=range(6), draw_first=scan):
    """Returns scans and what is drawn of them, in paths such as `{c}/{n}.png`."""
    return {
        path.format(c=c, n=n): drawn(k + 9 * place)
        for place, c in enumerate(OCT[:2])
        for k, n in enumerate(names)
        for path, drawn in ((form, draw_first), (other, draw))
    }


IDS = ("7f3a", "c91e", "03bd", "9e27", "55aa", "d1f0")

PAIRED = {
    "masks as a class": paired("images{c}/{n}.jpg", "Segmentation{c}/{n}.png"),
    "labelsTr": paired("{c}/imagesTr/s_{n:03}_0000.png", "{c}/labelsTr/s_{n:03}.png"),
    "labels of organs": paired("{c}/pngs/{n}.png", "{c}/organs/{n}.png",
                               lambda k: mask(k, levels=(0, 7))),
    "JPEG": paired("a/{c}/{n}.jpg", "Annotated/{c}/{n}.jpg", lambda k: mask(k, "JPEG")),
    "below a class": paired("{c}/{n}.png", "{c}/Annotations png/{n}.png"),
    "with words": paired("{c}/a/img_{n}.png", "{c}/b/cell_{n}_bin.png"),
    "for each patient": paired("{c}/P{n}/raw7/1.png", "{c}/P{n}/bw/1.png"),
    "heat maps by number": paired("{c}/images/{n}.png", "{c}/heatmaps/{n}.png", heat),
    "maps by name": {f"{c}/{kind}/{c}{n}.png": scan(k) for k, n in enumerate(IDS)
                     for c in OCT[:2] for kind in ("one", "other")},
    "classes by name": {f"{c}/{n}.png": scan(k) for k, n in enumerate(IDS) for c in OCT[:2]},
    "a word behind": paired("{c}/{n}.png", "{c}/{n}_heat_map.png"),
    "both with words": paired("{c}/x{n}-scan.png", "{c}/x{n}-bw.png"),
    "a word before": paired("{c}/img{n}.png", "{c}/bw{n}.png"),
    "a word more before": paired("{c}/img{n}.png", "{c}/bw_img{n}.png"),
    "a letter behind": paired("{c}/{n}a.png", "{c}/{n}b.png"),
    "a number behind": paired("{c}/{c}x{n}.png", "{c}/{c}x{n}_1.png"),
    "a word of other letters": paired("{c}/{n}.png", "{c}/{n}_标注.png"),
    "names of a folder": paired("{c}/P{n}/image.png", "{c}/P{n}/label.png"),
    "beside the classes": paired("a/x{c}/{c}{n}.png", "b/{c}{n}.png"),
    "another ending": paired("{c}/{n}.jpg", "{c}/{n}.png"),
    "DICOM": paired("{c}/{n}.dcm", "{c}/{n}_x.dcm", lambda k: dicom_file(shape(k)),
                    draw_first=lambda k: dicom_file(grey_pixels(k, 32, 48))),
}  # fmt: skip


@pytest.mark.parametrize("files", PAIRED.values(), ids=PAIRED)
def test_pictures_of_the_same_names_are_refused_and_each_flag_that_is_named_settles_it(files):
    with pytest.raises(errors.UserError, match="hold pictures of the same names") as caught:
        list_files(files)
    message = str(caught.value)
    assert len(re.findall(r"(?:such as|;) [^;]+?/[^;]+? and [^;]+?/[^;]+?(?=;|[.] )", message)) == 3
    flags = re.findall(r"--(exclude_regex|layout) '([^']+)'", message)
    assert {name for name, _ in flags} == {"exclude_regex", "layout"}
    for name, value in flags:
        wanted = {name: tuple(value.split("/")) if name == "layout" else value}
        listing = list_files(files, **wanted)
        assert len(listing.table) == len(files) // (1 if name == "layout" else 2)


NOT_PAIRED = {
    "numbers in each class": paired("A{c}/{n}.png", "B{c}/{n}.png", scan),
    "numbers with the class": paired("A/CNV-{n}{c}.png", "B/DME-{n}{c}.png", scan),
    "sides": {f"{c}/{side}/{c}{n}.png": scan(k) for k, n in enumerate(IDS) for c in OCT
              for side in ("left", "right")},
    "masks alone": paired("A{c}/{n}.png", "B{c}/{n}.png", draw_first=mask),
    "eyes": {f"{c}/{c}{n}_{side}.png": scan(k) for k, n in enumerate(IDS) for c in OCT
             for side in ("left", "right")},
}  # fmt: skip


@pytest.mark.parametrize("files", NOT_PAIRED.values(), ids=NOT_PAIRED)
def test_classes_may_have_the_same_names_of_files(files):
    assert len(list_files(files).table) == len(files)


@pytest.mark.parametrize("drawn", [mask, lambda k: dicom_file(shape(k))])
def test_nearly_binary_pictures_are_told(drawn):
    files = {f"{c}/{start + k}": draw(k) for c, start, draw in (("X", 0, scan), ("Y", 9, drawn))
             for k in range(3)}  # fmt: skip
    (note,) = notes_of(list_files(files), private=True)
    assert note.startswith("the pictures of the class 'Y' are nearly binary, as masks are")
    # Other names than those of the scans, in another folder of the same classes.
    files = paired("{c}/raw/a{n}{c}.png", "{c}/bw/{c}{n}7.png", drawn)
    (note,) = notes_of(list_files(files), private=True)
    assert note.startswith("the pictures of the folder 'bw' are nearly binary, as masks are")


# ---- trees drawn at random

SPLITS = st.sampled_from([("train", "test"), ("Train_Data", "Val_Data"), ("training", "valid")])
CLASSES = st.sampled_from([OCT, ("benign", "malignant"), ("cat", "dog", "cow"), ("A", "B")])
PATIENTS = st.builds(
    lambda form, start, num: tuple(form.format(n) for n in range(start, start + num)),
    st.sampled_from(["P{}", "patient_{:03}", "{}", "{:06}", "AB{}", "case {}", "id-{}"]),
    st.integers(0, 900),
    st.integers(1, 60),
)
NOTHING = st.sampled_from([("left", "right"), ("images",), ("session_1", "session_2"), ("deep",),
                           ("a", "b"), ("1", "2"), ("40X", "100X")])  # fmt: skip
NAMES = {"split": SPLITS, "class": CLASSES, "patient": PATIENTS, "*": NOTHING}


@st.composite
def trees(draw):
    """Returns files and what is true of each: split, class and patient."""
    others = draw(st.lists(st.sampled_from(["split", "patient", "*"]), max_size=3, unique=True))
    roles = draw(st.permutations(["class", *others]))
    names = [draw(NAMES[role]) for role in roles]
    folders = list(itertools.product(*names))
    kept = draw(st.lists(st.sampled_from(folders), min_size=1, max_size=150, unique=True))
    number = draw(st.integers(1, 30))
    return {
        "/".join([*folder, f"{n}.png"]): dict(zip(roles, folder, strict=True))
        for folder in kept
        for n in range(number)
    }


@settings(deadline=None)
@given(trees())
def test_no_tree_is_read_wrongly_without_a_word(files):
    try:
        listing = list_files({name: name.encode() for name in files})
    except errors.UserError:
        return
    if len({facts["class"] for facts in files.values()}) == 1 or listing.ledger.rejects:
        return  # that is said
    rows = listing.table.select(["path", "split", "label", "patient"]).to_pylist()
    for row in rows:
        # The outermost folders may be missing in a path.
        true = [facts for name, facts in files.items() if f"/{name}".endswith(f"/{row['path']}")]
        assert row["label"] in {facts["class"] for facts in true}
        if row["patient"]:
            assert row["patient"] in {facts.get("patient") for facts in true}
        if "split" in true[0]:
            assert row["split"] in {_usual(facts["split"]) for facts in true} | {"train"}


def _usual(split):
    return next(name for name in ("train", "val", "test") if name in split.lower())
