"""The README is true: its tree, its flags and its commands exist. The change log is in order."""

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


def test_the_change_log_has_the_sections_of_a_version_once_and_short_entries() -> None:
    versions = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8").split("\n## ")[1:]
    for version in versions:
        sections = re.findall(r"^### (\w+)$", version, re.MULTILINE)
        order = [name for name in ("Added", "Changed", "Fixed", "Removed") if name in sections]
        assert sections == order
        entries = re.findall(r"^- .*$", version, re.MULTILINE)
        assert [entry for entry in entries if len(entry.split()) > 60] == []
