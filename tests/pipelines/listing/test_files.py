"""Which files may be images; and that every file is counted once, in any order."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from image_files import under
from listed import drawn, list_files, members_of, places, reasons

from pipelines import errors
from pipelines.sources.source import MAX_FILE_BYTES, Member

TREE = drawn("{train,val,test}/{CNV,DME}/{1..2}.jpeg")


@pytest.mark.parametrize(
    ("why", "names"),
    [
        ("apple_double", ["train/CNV/._CNV-1-1.jpeg", "__MACOSX/train/CNV/CNV-1-1.jpeg"]),
        ("hidden", ["train/.ipynb_checkpoints/1.png", ".git/train/CNV/1.png", "CNV/.DS_Store"]),
        ("no_image_name", ["README.txt", "train/CNV/1.xml", "a/Thumbs.db", "CNV/desktop.INI"]),
    ],
)
def test_what_is_no_image_is_ignored_and_counted(why, names):
    listing = list_files({**TREE, **dict.fromkeys(names, b"?")})
    assert places(listing).keys() == TREE.keys()
    assert listing.ledger.ignored == {why: len(names)}


def test_a_name_that_leads_elsewhere_is_a_reject():
    names = [
        "/train/CNV/1.png", "../train/CNV/1.png", "train/CNV/../../../../etc/1.png",
        "train/../CNV/1.png", "\\\\server\\train/CNV/1.png", "C:/train/CNV/1.png",
        "train/CNV/1\0.png", "train//1.png", "train/CNV//1.png", "train/./1.png",
    ]  # fmt: skip
    listing = list_files({**TREE, **dict.fromkeys(names, b"?")})
    assert places(listing).keys() == TREE.keys()
    assert list(reasons(listing).values()) == ["unsafe_name"] * len(names)


def test_a_file_that_must_not_be_read_is_a_reject_that_can_be_printed():
    linked, system = (
        Member(f"train/CNV/{name}", 5, problem=("link", "a link")) for name in ("s", ".DS_Store")
    )
    sizes = {"huge": MAX_FILE_BYTES + 1, "limit": MAX_FILE_BYTES, "\udcff": 1}
    files = [Member(f"train/{c}/{n}.png", size) for n, size in sizes.items() for c in ("CNV", "D")]
    listing = list_files([*files, linked, system])
    assert reasons(listing) == {
        "train/CNV/s": "link",
        **{f"train/{c}/huge.png": "file_too_large" for c in ("CNV", "D")},
        **{f"train/{c}/\\udcff.png": "unreadable_name" for c in ("CNV", "D")},
    }
    assert listing.ledger.ignored == {"hidden": 1}


@pytest.mark.parametrize("files", [{}, {"__MACOSX/a/b/c": b""}, {"a/1.nii": b""}])
def test_a_source_without_images_says_what_was_expected(files):
    with pytest.raises(errors.UserError, match="--input"):
        list_files(files)


def test_patterns_that_leave_everything_out_are_named():
    for flags in ({"include_regex": "zzz"}, {"exclude_regex": "."}):
        with pytest.raises(errors.UserError, match="--exclude_regex leave out all of 12 files"):
            list_files(TREE, **flags)
    listing = list_files(TREE, exclude_regex="CNV/1")
    assert (listing.ledger.excluded, listing.ledger.notes) == (3, ())


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


@given(files=FILES, layout=st.sampled_from([(), ("class",), ("*", "class"), ("split", "class")]))
def test_every_file_is_an_image_a_copy_a_reject_or_no_data(files, layout):
    members = members_of(files)
    if members:
        members[0] = Member(members[0].name, 1, problem=("link", "a link"))
    try:
        listing = list_files(members, layout=layout)
    except errors.UserError:
        return
    assert listing.ledger.num_files == len(files)  # the listing itself adds up where they went
    paths = listing.table["path"].to_pylist()
    assert len(set(paths)) == len(paths)
    assert all(label for _, label in places(listing).values())
    assert set(places(listing)) <= {name for name, _ in files}


@settings(max_examples=10)
@given(order=st.permutations(range(len(TREE) * 2 + 4)))
def test_the_listing_does_not_depend_on_the_order_of_the_source(order):
    files = [*under("a", TREE).items(), *under("b", TREE).items()]
    files += [("b/train/CNV/new.jpeg", b"n"), ("b/x.txt", b""), ("c", b""), ("b/val/CNV/1~", b"y")]
    members = members_of(files)
    listing, shuffled = list_files(members), list_files([members[i] for i in order])
    assert shuffled.table.to_pylist() == listing.table.to_pylist()
    assert shuffled.ledger == listing.ledger
