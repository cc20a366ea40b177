"""Archives and folders, whole or damaged: nothing may be lost without a word.

A number decides what is made and how it is damaged. `make search` tries many numbers that are new.
"""

import collections
import random
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from source_files import list_input

from campaign import damage, tools, trees
from pipelines import errors
from pipelines.listing import listing
from pipelines.listing.refs import iterate_refs
from tfrecord_io.decoding.rejects import Reject

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]


def ledger_of(path, folder):
    """Lists an input and reads every image; returns what became of each file."""
    source, listed = list_input(path, folder / "scratch")
    ledger, examples = listed.ledger, {}
    rejects = [(tools.escaped(r.source_path), r.reason) for r in ledger.rejects]
    with source.open() as reader:
        for ref in iterate_refs(listed.table):
            reader.announce(ref.member)
            try:
                examples[ref.source_path] = tools.digest(reader.read(ref.member))
            except Reject as reject:
                rejects.append((tools.escaped(ref.source_path), reject.reason))
    return tools.Ledger(examples, rejects, ledger.copies, ledger.ignored, ledger.num_files)


def faults_of(number):
    """Returns what is wrong with what the build says of one archive or folder."""
    rng = random.Random(number)
    with tempfile.TemporaryDirectory(prefix="campaign-") as name:
        kind, folder = rng.choice(trees.KINDS), Path(name)
        entries = trees.make_tree(rng, kind)
        path = trees.pack(rng, kind, entries, folder / "scans")
        done = damage.damage(rng, path) if rng.random() < 0.9 else ""
        try:
            ledger = ledger_of(path, folder)
        except (errors.UserError, errors.BuildError) as refusal:
            return [] if done else [f"a valid {kind} is refused: {refusal}"]
        contents = [entry.content for entry in entries]
        faults = [*tools.complaints(tools.found_by_tools(path), ledger, contents)]
    fates = collections.Counter(entry.fate for entry in entries if entry.fate)
    if not done and +ledger.fates() != fates:
        faults.append(f"became {ledger.fates()} instead of {fates}")
    return [f"{kind}, {done or 'whole'}: {fault}" for fault in faults]


@settings(max_examples=max(400, settings().max_examples))
@given(st.integers(0, 10**9))
def test_whatever_other_tools_find_is_in_the_ledger(number):
    assert faults_of(number) == []


def test_a_listing_that_passes_over_every_third_file_is_found_out(monkeypatch):
    real = listing.read_files

    def lossy(members, *more, **options):
        return real([m for place, m in enumerate(members) if place % 3], *more, **options)

    monkeypatch.setattr(listing, "read_files", lossy)
    assert "which is not in the ledger" in str([faults_of(number) for number in range(20)])
