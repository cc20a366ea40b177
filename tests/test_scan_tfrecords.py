"""One command for all, as a user runs it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import builds
import pytest

import scan_tfrecords


def run(*words: object) -> subprocess.CompletedProcess[str]:
    """Runs `scan-tfrecords` with these words."""
    return builds.run_command([sys.executable, "-m", "scan_tfrecords", *map(str, words)])


@pytest.mark.parametrize("words", [(), ("--help",), ("-h",)])
def test_without_a_command_it_lists_each_in_one_line(words):
    done = run(*words)
    assert (done.returncode, done.stderr) == (0, "")
    listed = [line.split()[0] for line in done.stdout.splitlines() if line.startswith("  ")]
    assert listed == [
        *("build", "verify", "show", "audit", "index"),
        *("trunk", "features", "train", "evaluate", "predict", "benchmark"),
    ]


def test_a_command_that_does_not_exist_is_wrong_usage():
    done = run("biuld", "--output", "out")
    assert (done.returncode, done.stdout) == (2, "")
    assert "received 'biuld'" in done.stderr
    assert "  build " in done.stderr


@pytest.mark.parametrize("command", scan_tfrecords.COMMANDS)
def test_each_command_gets_its_own_arguments(command):
    done = run(command, "--help")
    assert done.returncode == 0, done.stderr
    flag = {"build": "--image_size", "train": "--workdir", "benchmark": "--replicas"}
    flag |= {"evaluate": "--model", "predict": "--model", "verify": "--source_input"}
    flag |= {
        "trunk": "--layer",
        "features": "--dtype",
        "show": "--output",
        "audit": "--max_leaked_patients",
        "index": "--index_dir",
    }
    assert flag[command] in done.stdout


def test_it_builds_a_folder_and_verifies_what_it_built(source_tree: Path, tmp_path: Path):
    output = tmp_path / "out"
    flags = builds.arguments(source_tree, output, "--max_reject_fraction=0.5")
    built = run("build", *flags)
    assert built.returncode == 0, built.stderr
    verified = run("verify", output)
    assert verified.returncode == 0, verified.stderr

    manifest = json.loads((output / "manifest.json").read_text())
    shard = output / manifest["splits"]["train"]["shards"][0]["name"]
    shard.write_bytes(shard.read_bytes()[:-1])
    assert run("verify", output).returncode == 1
    assert run("build", *flags, "--image_size=9").returncode == 2
