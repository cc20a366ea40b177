"""`make run` builds, audits and trains with the right source and folders."""

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def _commands(*settings):
    """Returns what `make run` would do with these settings."""
    env = {"PATH": os.environ["PATH"], "HOME": "/nowhere"}
    command = ["make", "--dry-run", "run", *settings]
    return subprocess.run(
        command, cwd=ROOT, env=env, check=True, capture_output=True, text=True
    ).stdout


def test_a_first_run_draws_scans_and_names_its_pages():
    commands = _commands()
    assert "scan-tfrecords build --source synthetic" in commands
    assert 'scan-tfrecords train --data "data/synthetic" --workdir "runs/synthetic"' in commands
    assert "data/synthetic/report.html" in commands
    assert "runs/synthetic/report.html" in commands


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ("scans/", "scans"),
        ("../my scans", "my scans"),
        ("/data/oct.zip", "oct"),
        ("oct.v2.zip", "oct.v2"),
        ("s3://bucket/oct.zip", "oct"),
    ],
)
def test_scans_of_ones_own_are_split_by_patient_into_folders_of_their_name(given, name):
    commands = _commands(f"INPUT={given}")
    assert f'--input "{given}" --splits auto' in commands
    assert f'--output "data/{name}"' in commands
    assert f'--data "data/{name}" --workdir "runs/{name}"' in commands


def test_its_folders_and_flags_can_be_named():
    settings = ("INPUT=scans", "OUTPUT=d", "WORKDIR=r", "EPOCHS=3", "BUILD_FLAGS=--labels t.csv")
    commands = _commands(*settings)
    assert "--splits auto --limit 3200 --labels t.csv --image_size 64 --output" in commands
    assert "auto" not in _commands("INPUT=scans", "BUILD_FLAGS=--splits patient")
    assert '--data "d" --workdir "r" --epochs 3' in commands
