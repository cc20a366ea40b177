"""The wheel installs what reading needs alone."""

import json
import shutil
import subprocess
import sys
import venv

import pytest
from builds import ROOT

pytestmark = pytest.mark.slow

READ = """
import sys, tfrecord_io
print(next(iter(tfrecord_io.make_batches(sys.argv[1], "train", 2)))[0].shape)
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """Returns the folder of the programs of an environment that has the wheel, without extras."""
    folder = tmp_path_factory.mktemp("installed")
    source = folder / "source"
    source.mkdir()
    for name in ("setup.py", "pyproject.toml", "README.md", "scan_tfrecords.py"):
        shutil.copy(ROOT / name, source)
    for name in ("pipelines", "tfrecord_io", "train"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("*.so", "*.pyc"))
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet")
    wheel = (*pip, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", folder, source)
    subprocess.run(wheel, check=True)
    venv.create(folder / "venv")
    python = folder / "venv" / "bin" / "python"
    (file,) = folder.glob("*.whl")
    subprocess.run((*pip, "--python", python, "install", file), check=True)
    return python.parent


def test_ten_packages_at_most_are_installed(installed):
    pip = (sys.executable, "-m", "pip", "--python", installed / "python", "list", "--format=json")
    listed = subprocess.run(pip, check=True, capture_output=True, text=True).stdout
    packages = {package["name"] for package in json.loads(listed)} - {"scan-tfrecords"}
    assert len(packages) <= 10, packages
    assert not packages & {"apache-beam", "tensorflow", "keras"}


@pytest.mark.parametrize("words", [("-c", READ), ("-m", "scan_tfrecords", "verify")])
def test_a_dataset_is_read_and_verified_without_any_extra(
    installed, built_dataset, tmp_path, words
):
    subprocess.run((installed / "python", *words, built_dataset), cwd=tmp_path, check=True)
