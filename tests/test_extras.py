"""Each power beside the way can be deleted, with the lines that name it, and the rest works."""

import re
import shutil
import sys

import builds
import pytest
from builds import ROOT

#: Tests of the way of each package, which ask for no extra and, to be quick, import no TensorFlow.
CORE = {
    "pipelines": ("tests/tfrecord_io/format/test_golden.py", "-k", "always_wrote"),
    "tfrecord_io": ("tests/tfrecord_io/auditing/test_audit.py", "-k", "found or limit"),
}
EXTRAS = sorted(
    path.relative_to(ROOT)
    for package in CORE
    for path in (ROOT / package / "extras").glob("*.py")
    if path.stem != "__init__"
)


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    """Returns a copy of all that the commands and their tests need."""
    copy = tmp_path_factory.mktemp("copy") / "tree"
    kept = shutil.ignore_patterns(".*", "__pycache__", "data", "docs", "benchmarks")
    return shutil.copytree(ROOT, copy, ignore=kept)


def without_lines(text, extra):
    """Returns the text of a command without an extra in its imports, and its other lines."""
    for imported in re.findall(rf"^from \w+\.extras import .*\b{extra}\b.*$", text, re.MULTILINE):
        start, names = imported.split(" import ")
        others = ", ".join(name for name in names.split(", ") if name != extra)
        text = text.replace(imported, f"{start} import {others}" if others else "")
    lines = text.split("\n")
    return "\n".join(line for line in lines if not re.search(rf"\b{extra}\.", line))


@pytest.mark.slow
@pytest.mark.parametrize("path", EXTRAS, ids=str)
def test_without_an_extra_and_its_lines_the_rest_works(path, tree):
    package = path.parts[0]
    commands = [
        command
        for folder in CORE
        for command in (tree / folder).glob("*.py")
        if re.search(rf"\b{path.stem}\.", command.read_text()) and "extras" in command.read_text()
    ]
    before = {file: file.read_text() for file in (tree / path, *commands)}
    assert len(before) > 1
    try:
        (tree / path).unlink()
        for command in commands:
            command.write_text(without_lines(before[command], path.stem))
        words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *CORE[package]]
        done = builds.run_command(["env", "-C", str(tree), *words])
        assert done.returncode == 0, done.stdout[-3000:]
    finally:
        for file, text in before.items():
            file.write_text(text)
