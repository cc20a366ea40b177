"""The README is true: its tree, its flags and its commands exist."""

from __future__ import annotations

import re
from pathlib import Path

from pipelines import options

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def _tree() -> dict[str, str]:
    """Returns the notes of the README's tree by path."""
    block = re.search(r"```text\n(.*?)```", README, re.DOTALL)
    assert block, "the README should have a tree in a ```text block"
    notes, folder = {}, ""
    for line in block[1].splitlines():
        indent, name, note = re.fullmatch(r"( *)(\S+) *(.*)", line).groups()
        if not indent:
            folder = name if name.endswith("/") else ""
        notes[(folder if indent else "") + name] = note
    return notes


def test_every_path_of_the_tree_exists() -> None:
    tree = _tree()
    assert len(tree) > 15
    assert [path for path in tree if not (ROOT / path).exists()] == []


def test_every_room_stands_in_the_tree_with_a_short_note() -> None:
    tree = _tree()
    rooms = [
        f"{path.parent.relative_to(ROOT).as_posix()}/"
        for package in ("pipelines", "tfrecord_io", "train")
        for path in sorted((ROOT / package).glob("**/__init__.py"))
        if path.parent.parent.name != "sources"
    ]
    assert [room for room in rooms if room not in tree] == []
    assert {path: note for path, note in tree.items() if not 1 <= len(note.split()) <= 8} == {}


def test_every_flag_that_the_readme_gives_to_the_build_is_one() -> None:
    commands = re.findall(r"build_tfrecords\.py((?: +[^\n`]+|\\\n)*)", README)
    flags = {flag for command in commands for flag in re.findall(r"--[a-z_]+", command)}
    beam_flags = {
        "--runner", "--project", "--region", "--temp_location", "--sdk_container_image",
        "--direct_num_workers", "--experiments",
    }  # fmt: skip
    assert flags - set(options.flag_names()) - beam_flags == set()
    assert "--source" in flags


def test_every_linked_file_exists() -> None:
    links = re.findall(r"\]\((?!https?:)([^)#]+)", README)
    assert links
    assert [link for link in links if not (ROOT / link).exists()] == []
