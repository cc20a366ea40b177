"""Archives and folders, whole and damaged: nothing in them may be lost without a word."""

from __future__ import annotations

import collections
import csv
import json
import random
import subprocess
import sys
from pathlib import Path

import builds
import pyarrow.parquet as pq

from campaign import mutations, oracle, trees
from campaign.processes import Outcome
from pipelines import build_tfrecords, errors
from pipelines.listing.listing import ListingOptions, list_images
from pipelines.listing.refs import iterate_refs
from pipelines.sources.archive import ArchiveSource
from pipelines.sources.directory import DirectorySource
from tfrecord_io.rejects import Reject

_REFUSALS = (errors.UserError, errors.BuildError)


def try_case(rng: random.Random, folder: Path, how: str) -> Outcome:
    """Makes one archive or folder and has it listed and read.

    Args:
        rng: decides everything.
        folder: an empty one.
        how: `list` calls the source, `build` the whole job in this process, `command` runs it.

    Returns:
        (what came of it, complaints, what was done).
    """
    kind = rng.choice(trees.KINDS)
    entries = trees.make_tree(rng, kind)
    path = trees.pack(rng, kind, entries, folder / "scans")
    done: list[str] = []
    if rng.random() < 0.9:
        mutate = mutations.mutate_folder if path.is_dir() else mutations.mutate_archive
        done = mutate(rng, path)
    what = f"{kind}, {', '.join(done) or 'whole'}"
    ways = {"list": list_archive, "build": _build, "command": _command}
    ledger, refusal = ways[how](path, folder)
    if ledger is None:
        if not done:
            return "refused", [f"a valid {kind} is refused: {refusal}"], what
        return "refused", list(about(refusal)), what
    found = oracle.found_by_tools(path)
    problems = list(oracle.complaints(found, ledger, [entry.content for entry in entries]))
    if not done:
        problems += _about_whole(entries, ledger)
    unharmed = not ledger.rejects or not done
    return "read" if unharmed else "read, with rejects", problems, what


def about(refusal: str) -> list[str]:
    """Complains of a refusal that is not a message for a user."""
    if "Traceback" in refusal or not 20 < len(refusal) < 4000:
        return [f"not a message for a user: {refusal!r}"]
    return []


def _about_whole(entries: list[trees.Entry], ledger: oracle.Ledger) -> list[str]:
    """Compares an undamaged tree with what its maker knows of it."""
    wanted = collections.Counter(entry.fate for entry in entries if entry.fate)
    ignored = sum(ledger.ignored.values())
    got = collections.Counter(
        example=len(ledger.examples), reject=len(ledger.rejects),
        copy=ledger.copies, ignored=ignored,
    )  # fmt: skip
    return [] if +got == +wanted else [f"expected {dict(wanted)}, received {dict(got)}"]


def list_archive(path: Path, folder: Path) -> tuple[oracle.Ledger | None, str]:
    """Lists an input and reads every image; returns the ledger, or None and why it is refused."""
    try:
        source = DirectorySource(path) if path.is_dir() else ArchiveSource(path)
        source = source.prepare(folder / "scratch")
        listing = list_images(source, ListingOptions())
        examples, rejects = {}, [(oracle.escaped(r.source_path), r.reason) for r in listing.rejects]
        with source.open() as reader:
            for ref in iterate_refs(listing.refs):
                reader.announce(ref.member) if hasattr(reader, "announce") else None
                try:
                    examples[ref.source_path] = oracle.digest(reader.read(ref.member))
                except Reject as reject:
                    rejects.append((oracle.escaped(ref.source_path), reject.reason))
    except _REFUSALS as error:
        return None, str(error)
    return (
        oracle.Ledger(examples, rejects, listing.copies, listing.ignored, listing.num_files),
        "",
    )


_FLAGS = ("--num_shards=2", "--max_reject_fraction=1", "--direct_running_mode=in_memory")


def _build(path: Path, folder: Path) -> tuple[oracle.Ledger | None, str]:
    output = folder / "output"
    try:
        build_tfrecords.build(builds.arguments(path, output, *_FLAGS))
    except _REFUSALS as error:
        return None, str(error)
    return _read_ledger(output), ""


def _command(path: Path, folder: Path) -> tuple[oracle.Ledger | None, str]:
    output = folder / "output"
    words = builds.command(path, output, *_FLAGS)
    limited = [sys.executable, "-c", _MEASURED, *words]
    done = subprocess.run(
        limited, capture_output=True, timeout=300, check=False, cwd=builds.ROOT, text=True
    )
    peak = int(done.stdout.rsplit("peak ", 1)[-1])
    if peak > 1 << 20 or done.returncode not in (0, 1, 2):
        return None, f"Traceback: exit code {done.returncode}, {peak} KiB\n{done.stderr}"
    if done.returncode:
        return None, done.stderr[done.stderr.find("error: ") :]
    return _read_ledger(output), ""


# Runs a command and tells the most memory that it, or one of its workers, has held.
_MEASURED = """
import resource, subprocess, sys
code = subprocess.run(sys.argv[1:]).returncode
print("peak", resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
sys.exit(code)
"""


def _read_ledger(output: Path) -> oracle.Ledger:
    counts = json.loads((output / "manifest.json").read_bytes())["counts"]
    rows = pq.read_table(output / "examples.parquet", columns=["path", "file_xxh3"]).to_pylist()
    with (output / "rejects.csv").open(newline="", encoding="utf-8") as file:
        rejects = [(row["path"], row["reason"]) for row in csv.DictReader(file)]
    # What could be a formula has a quote before it.
    rejects = [
        (name[1:] if name[:2] in ("'=", "'+", "'-", "'@") else name, r) for name, r in rejects
    ]
    return oracle.Ledger(
        {row["path"]: row["file_xxh3"] for row in rows},
        rejects,
        counts["copies"],
        counts["ignored"],
        counts["files"],
    )
