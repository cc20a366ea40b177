"""Archives and folders, whole or damaged: nothing may be lost without a word."""

import collections
from pathlib import Path

from source_files import list_input

from campaign import damage, tools, trees
from campaign.case import Case
from campaign.tools import Ledger
from pipelines import errors
from pipelines.listing.refs import iterate_refs
from tfrecord_io.decoding.rejects import Reject


def try_archive(case: Case) -> str:
    """Makes one archive or folder, and lists and reads it."""
    rng, kind = case.rng, case.pick(*trees.KINDS)
    entries = trees.make_tree(rng, kind)
    path = trees.pack(rng, kind, entries, case.folder / "scans")
    done = ""
    if case.happens(0.9):
        done = (damage.damage_folder if path.is_dir() else damage.damage_archive)(rng, path)
    case.what = f"{kind}, {done or 'whole'}"
    try:
        ledger = _list_all(path, case.folder)
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


def _list_all(path: Path, folder: Path) -> Ledger:
    """Lists an input and reads every image."""
    source, listing = list_input(path, folder / "scratch")
    examples, rejects = (
        {},
        [(tools.escaped(r.source_path), r.reason) for r in listing.ledger.rejects],
    )
    with source.open() as reader:
        for ref in iterate_refs(listing.table):
            reader.announce(ref.member)
            try:
                examples[ref.source_path] = tools.digest(reader.read(ref.member))
            except Reject as reject:
                rejects.append((tools.escaped(ref.source_path), reject.reason))
    return Ledger(
        examples, rejects, listing.ledger.copies, listing.ledger.ignored, listing.ledger.num_files
    )
