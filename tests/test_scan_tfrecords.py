"""One command for all, as a user runs it."""

import os
import sys
from pathlib import Path

import builds
import pyarrow
import pytest

import scan_tfrecords
import tfrecord_io


@pytest.fixture(autouse=True)
def unchanged_environment(monkeypatch):
    """Undoes at the end of a test what the command sets for its workers."""
    monkeypatch.setenv("PYTHONSAFEPATH", os.environ.get("PYTHONSAFEPATH", ""))


def run(*words):
    """Runs `scan-tfrecords` with these words."""
    return builds.run_command([sys.executable, "-m", "scan_tfrecords", *map(str, words)])


def run_here(*words):
    """Runs it in this process, which has imported what a command needs; returns the exit code."""
    try:
        return scan_tfrecords.main([str(word) for word in words])
    except SystemExit as end:  # after --help
        return end.code or 0


@pytest.mark.parametrize("words", [(), ("--help",), ("-h",)])
def test_without_a_command_it_lists_each_in_one_line(words, capsys):
    assert run_here(*words) == 0
    said = capsys.readouterr()
    assert said.err == ""
    listed = [line.split()[0] for line in said.out.splitlines() if line.startswith("  ")]
    assert listed == [
        *("build", "verify", "audit"),
        *("train", "evaluate", "compare", "predict", "benchmark"),
    ]


def test_a_command_that_does_not_exist_is_wrong_usage_and_the_version_is_told():
    done = run("biuld", "--output", "out")
    assert (done.returncode, done.stdout) == (2, "")
    assert "received 'biuld'" in done.stderr
    assert "  build " in done.stderr
    assert run("--version").stdout == f"scan-tfrecords {tfrecord_io.__version__}\n"


@pytest.fixture(scope="module")
def light(tmp_path_factory):
    """Runs Python with the packages of the light install alone."""
    folder, site = tmp_path_factory.mktemp("light"), Path(pyarrow.__file__).parents[1]
    for name in ("google_crc32c", "numpy", "obstore", "pyarrow", "xxhash"):
        for path in site.glob(f"{name}*"):
            (folder / path.name).symlink_to(path)
    path = {"PYTHONPATH": f"{folder}:{builds.ROOT}"}
    return lambda *words: builds.run_command([sys.executable, "-S", *map(str, words)], env=path)


@pytest.mark.parametrize(
    ("words", "extra"),
    [
        (["-m", "scan_tfrecords", "build"], "build"),
        (["pipelines/build_tfrecords.py", "--help"], "build"),
        (["-m", "scan_tfrecords", "audit", "out"], "build"),
        *((["-m", "scan_tfrecords", name], "train") for name in ("train", "predict", "compare")),
        (["train/run.py", "--help"], "train"),
    ],
)
def test_a_command_whose_packages_are_missing_names_their_extra(light, words, extra):
    done = light(*words)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert f"pip install '.[{extra}]' in the clone" in done.stderr


def test_from_python_a_dataset_is_built_and_read(source_tree, tmp_path, capfd):
    output, options = tmp_path / "out", {"image_size": "8x8", "max_reject_fraction": 0.5}
    options["direct_running_mode"] = "in_memory"
    dataset = scan_tfrecords.build(source_tree, os.fsencode(output), overwrite=False, **options)
    manifest = dataset.manifest
    assert manifest.image_shape == (8, 8, 1)
    images, _ = next(iter(dataset.batches("train", batch_size=2)))
    assert images.shape == (2, 8, 8, 1)
    assert "report.html" in capfd.readouterr().out
    assert "&lt;h1" in dataset._repr_html_()


def test_from_python_lists_and_mappings_are_what_their_flags_take():
    options = {"classes": ["a, b", "c"], "columns": {"path": "file"}, "limit": None, "fit": "pad"}
    words = list(scan_tfrecords._words(options))
    assert words == ['--classes="a, b",c', "--columns=path=file", "--fit=pad"]


def test_from_python_an_error_has_the_message_of_the_command(tmp_path):
    with pytest.raises(scan_tfrecords.CommandError) as caught:
        scan_tfrecords.build("nowhere", tmp_path / "out", limit=0)
    message = "--limit must be at least 1; received 0"
    assert (str(caught.value), caught.value.exit_code) == (message, 2)
