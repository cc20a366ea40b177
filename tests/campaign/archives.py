"""Archives and folders, whole, damaged or joined: nothing may be lost without a word."""

import collections
import gzip
import json
import random
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import builds
from source_files import list_archive

from campaign import damage, tools, trees
from campaign.case import Case
from campaign.tools import Ledger
from pipelines import errors
from pipelines.listing.refs import iterate_refs
from tfrecord_io.decoding.rejects import Reject


def try_archive(case: Case, read: Callable[[Path, Path], Ledger]) -> str:
    """Makes one archive or folder and has it read by `list_all` or `build`."""
    rng, kind = case.rng, case.pick(*trees.KINDS)
    entries = trees.make_tree(rng, kind)
    path = trees.pack(rng, kind, entries, case.folder / "scans")
    done = ""
    if case.happens(0.9):
        done = (damage.damage_folder if path.is_dir() else damage.damage_archive)(rng, path)
    case.what = f"{kind}, {done or 'whole'}"
    try:
        ledger = read(path, case.folder)
    except (errors.UserError, errors.BuildError) as refusal:
        case.require(done, f"a valid {kind} is refused: {refusal}")
        case.require_message(f"error: {refusal}")
        return "refused"
    found = tools.found_by_tools(path)
    case.problems += tools.complaints(found, ledger, [entry.content for entry in entries])
    if not done:
        fates = collections.Counter(entry.fate for entry in entries if entry.fate)
        case.compare("what became of the files", +ledger.fates(), fates)
    return "read, with rejects" if ledger.rejects and done else "read"


def try_joined(case: Case) -> str:
    """Joins two archives in one file, or takes members out of the index of one."""
    rng, kind = case.rng, case.pick(*(kind for kind in trees.KINDS if kind != "folder"))
    path, num_first = _pack(rng, kind, case.folder / "first")
    data = path.read_bytes()
    if kind in ("zip", "deflated") and case.happens(0.5):
        way, (data, num_more) = "hidden", _hide(rng, data)
    else:
        other, num_more = _pack(rng, kind, case.folder / "second")
        way, data = "joined", _join(rng, path.suffix, data, other.read_bytes())
    path.write_bytes(data)
    case.what = f"{kind}, {way}, {num_more} files besides {num_first}"
    try:
        ledger = list_all(path, case.folder)
    except (errors.UserError, errors.BuildError) as refusal:
        case.require_message(f"error: {refusal}")
        return f"{way}, refused"
    case.require(not num_more, f"read as if whole: {ledger.num_files} files")
    return f"{way}, read"


def _pack(rng: random.Random, kind: str, path: Path) -> tuple[Path, int]:
    entries = trees.make_tree(rng, kind)
    return trees.pack(rng, kind, entries, path), sum(entry.kind == "file" for entry in entries)


def _join(rng: random.Random, suffix: str, first: bytes, second: bytes) -> bytes:
    """Returns two archives in one file, in one of the ways in which that happens."""
    if suffix == ".zip":
        between = rng.choice((b"", bytes(rng.randrange(1, 5000)), rng.randbytes(rng.randrange(9))))
        return first + between + second
    if suffix == ".tar":
        return first + bytes(tarfile.BLOCKSIZE * rng.choice((0, 0, 1, 20, 3000))) + second
    if rng.random() < 0.5:
        return first + second
    return gzip.compress(gzip.decompress(first) + gzip.decompress(second), 1, mtime=0)


def _hide(rng: random.Random, data: bytes) -> tuple[bytes, int]:
    """Takes files out of a zip's index, and has its end record count the rest; says how many."""
    gone: list[zipfile.ZipInfo] = []

    def change(entries: list[zipfile.ZipInfo]) -> None:
        files = [entry for entry in entries if entry.compress_size]
        gone.extend(rng.sample(files, min(len(files), rng.choice((1, 1, 2, len(files) // 2)))))
        entries[:] = [entry for entry in entries if entry not in gone]

    return damage.change_index(data, change), len(gone)


def list_all(path: Path, folder: Path) -> Ledger:
    """Lists an input and reads every image."""
    source, listing = list_archive(path, folder / "scratch")
    examples, rejects = {}, [(tools.escaped(r.source_path), r.reason) for r in listing.rejects]
    with source.open() as reader:
        for ref in iterate_refs(listing.refs):
            reader.announce(ref.member) if hasattr(reader, "announce") else None
            try:
                examples[ref.source_path] = tools.digest(reader.read(ref.member))
            except Reject as reject:
                rejects.append((tools.escaped(ref.source_path), reject.reason))
    return Ledger(examples, rejects, listing.copies, listing.ignored, listing.num_files)


def build(path: Path, folder: Path) -> Ledger:
    """Builds a dataset of an input."""
    output = folder / "output"
    builds.build_here(path, output, "--num_shards=2", "--max_reject_fraction=1")
    counts = json.loads((output / "manifest.json").read_bytes())["counts"]
    rejects = [(row["path"], row["reason"]) for row in builds.read_csv(output / "rejects.csv")]
    # What could be a formula has a quote before it.
    formulas = ("'=", "'+", "'-", "'@")
    rejects = [(name[name.startswith(formulas) :], reason) for name, reason in rejects]
    examples = {row["path"]: row["file_xxh3"] for row in builds.rows_of(output)}
    return Ledger(examples, rejects, counts["copies"], counts["ignored"], counts["files"])
