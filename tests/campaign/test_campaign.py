"""A short run of the campaign; `python tests/campaign/run.py` has the long one."""

import sys

import pytest
from builds import run_command

# In its process alone the listing passes over every third file.
LOSSY = """
import sys
from pipelines.listing import listing
real = listing.read_files
def lossy(members, *more, **options):
    return real([m for i, m in enumerate(members) if i % 3], *more, **options)
listing.read_files = lossy
sys.path.insert(0, "tests/campaign")
sys.argv = ["run.py", "--cases=20"]
import run
sys.exit(run.main())
"""


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_short_search_finds_no_fault():
    done = run_command([sys.executable, "tests/campaign/run.py", "--cases=400"], timeout=500)
    assert ": 400 cases, 0 failed" in done.stdout, done.stdout
    assert done.returncode == 0


@pytest.mark.slow
def test_a_fault_is_found_and_the_command_that_repeats_it_is_printed():
    done = run_command([sys.executable, "-c", LOSSY])
    assert done.returncode == 1, done.stderr
    assert "which is not in the ledger" in done.stdout
    assert "python tests/campaign/run.py --seed 1 --case" in done.stdout
