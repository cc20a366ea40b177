"""A short run of the campaign; `python tests/campaign/run.py` has the long one."""

import subprocess
import sys

import pytest
from builds import ROOT, run_command


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("area", "num_cases"), [("archives", 400), ("datasets", 40)])
def test_a_short_search_finds_no_fault(area, num_cases):
    words = [sys.executable, "tests/campaign/run.py", area, f"--cases={num_cases}"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    assert f": {num_cases} cases, 0 failed" in done.stdout, done.stdout + done.stderr
    assert done.returncode == 0


@pytest.mark.slow
def test_a_fault_is_found_and_the_command_that_repeats_it_is_printed(tmp_path):
    # In this process alone the listing passes over every third file.
    broken = """
import sys
from pipelines.listing import listing
real = listing.read_files
def lossy(members, *more, **options):
    return real([m for i, m in enumerate(members) if i % 3], *more, **options)
listing.read_files = lossy
sys.path.insert(0, "tests/campaign")
sys.argv = ["run.py", "archives", "--cases=20"]
import run
sys.exit(run.main())
"""
    done = run_command([sys.executable, "-c", broken])
    assert done.returncode == 1, done.stderr
    assert "which is not in the ledger" in done.stdout
    assert "python tests/campaign/run.py archives --seed 1 --case" in done.stdout
