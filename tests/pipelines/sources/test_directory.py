import os

import pytest
from builds import IN_MEMORY
from image_files import write_tree, write_zip
from source_files import TREE, list_input, read_input

from pipelines import build_tfrecords, errors
from pipelines.listing.refs import iterate_refs
from pipelines.sources.directory import DirectorySource


@pytest.mark.parametrize(
    ("source", "given", "message"),
    [
        ("archive", "scans", "--source archive reads: a .zip file"),
        ("directory", "scans.zip", "--source directory reads: a folder"),
        ("directory", "nowhere", "nowhere does not exist"),
        ("directory", "scans", "no image"),
    ],
)
def test_an_input_of_another_kind_is_wrong_usage(source, given, message, tmp_path, capsys):
    write_zip(tmp_path / "scans.zip", {"A/1.png": b"1"})
    (tmp_path / "scans").mkdir()
    flags = [f"--source={source}", f"--input={tmp_path / given}", f"--output={tmp_path / 'out'}"]
    assert build_tfrecords.main([*flags, IN_MEMORY]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_links_to_files_are_followed_and_links_to_folders_and_pipes_are_rejects(tmp_path):
    elsewhere = write_tree(tmp_path / "elsewhere", {"1.jpeg": b"elsewhere"})
    tree = write_tree(tmp_path / "tree", TREE)
    (tree / "train/CNV/link.jpeg").symlink_to(elsewhere / "1.jpeg")
    (tree / "train/DME").symlink_to(elsewhere)
    (tree / "train/CNV/loop").symlink_to(tree)
    (tree / "train/CNV/broken.jpeg").symlink_to(tmp_path / "nowhere")
    (tree / "train/CNV/itself.jpeg").symlink_to("itself.jpeg")
    os.mkfifo(tree / "train/CNV/pipe.jpeg")
    assert read_input(tree) == {
        **TREE,
        "train/CNV/link.jpeg": b"elsewhere",
        "train/DME": "link",
        "train/CNV/loop": "link",
        "train/CNV/broken.jpeg": "unreadable_member",
        "train/CNV/itself.jpeg": "unreadable_member",
        "train/CNV/pipe.jpeg": "not_a_file",
    }


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda path, _: os.utime(path, ns=(0, 0)), "changed since .*--overwrite"),
        (lambda path, _: path.unlink(), "No such file.* Every worker"),
        (lambda _, tree: tree.rename(f"{tree} away"), "No such file.* Every worker"),
    ],
    ids=["time", "removed", "not seen"],
)
def test_a_file_that_changes_or_a_folder_that_a_worker_does_not_see_ends_the_build(
    tmp_path, change, message
):
    tree = write_tree(tmp_path / "tree", TREE)
    ref = next(iterate_refs(list_input(tree)[1].table))
    change(tree / ref.source_path, tree)
    with pytest.raises(errors.BuildError, match=message), DirectorySource(tree).open() as reader:
        reader.read(ref.member)
