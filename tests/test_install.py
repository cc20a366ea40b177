"""The wheel installs what reading needs alone, and each command names the extra that it lacks."""

import json
import shutil
import subprocess
import sys
import venv

import pytest
from builds import ROOT
from dataset_factory import write_dataset

pytestmark = pytest.mark.slow

#: Prints the labels of a dataset's first batch, and the packages that were imported for it.
READ = """
import json, sys
from tfrecord_io import make_batches
labels = next(iter(make_batches(sys.argv[1], "train", 2)))[1]
print(json.dumps([labels.shape, [name for name in ("apache_beam", "PIL", "tensorflow", "keras")
                                 if name in sys.modules]]))
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


def test_a_dataset_is_read_without_any_extra(installed, tmp_path):
    write_dataset(tmp_path / "data")
    command = (installed / "python", "-c", READ, tmp_path / "data")
    done = subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, text=True)
    (shape, imported) = json.loads(done.stdout)
    assert shape[0] == 2
    assert imported == []


@pytest.mark.parametrize(
    ("command", "extra"),
    [
        (("build", "--input", "scans", "--output", "data"), "build"),
        (("train", "--data", "data", "--workdir", "run"), "train"),
        (("evaluate", "--run", "run", "--data", "data"), "train"),
        (("predict", "--run", "run", "--input", "scan.png"), "train"),
    ],
)
def test_a_command_names_the_extra_that_it_lacks(installed, tmp_path, command, extra):
    words = (installed / "scan-tfrecords", *command)
    done = subprocess.run(words, cwd=tmp_path, check=False, capture_output=True, text=True)
    assert done.returncode == 2
    assert f"pip install '.[{extra}]' in the clone" in done.stderr
    assert "Traceback" not in done.stderr
