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


NAMES = {
    "scans/": "scans",
    "../my scans": "my scans",
    "oct.v2.zip": "oct.v2",
    "s3://b/oct.zip": "oct",
}


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ([], ["build --source synthetic", "data/synthetic/report.html",
              'train --data "data/synthetic" --workdir "runs/synthetic"']),
        *(([f"INPUT={given}"], [f'--input "{given}" --splits auto', f'--output "data/{name}"',
                                f'--data "data/{name}" --workdir "runs/{name}"'])
          for given, name in NAMES.items()),
        (["INPUT=scans", "OUTPUT=d", "WORKDIR=r", "EPOCHS=3", "BUILD_FLAGS=--labels t.csv"],
         ["--splits auto --limit 3200 --labels t.csv --image_size 64 --output",
          '--data "d" --workdir "r" --epochs 3']),
    ],
)  # fmt: skip
def test_a_run_takes_its_source_folders_and_flags_from_its_settings(settings, expected):
    commands = _commands(*settings)
    assert [part for part in expected if part not in commands] == []
    assert "auto" not in _commands("INPUT=scans", "BUILD_FLAGS=--splits patient")
