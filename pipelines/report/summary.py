"""What the build prints: what the listing found, and a summary when it ends."""

from __future__ import annotations

import shlex
import sys

import pyarrow.compute as pc

from pipelines.listing.images import Images
from pipelines.listing.options import ROLES
from pipelines.listing.refs import iterate_refs
from tfrecord_io.auditing.findings import alarms
from tfrecord_io.decoding import resize
from tfrecord_io.decoding.options import Preprocessing
from tfrecord_io.format.manifest import REJECTS_FILE_NAME, REPORT_FILE_NAME, Manifest
from tfrecord_io.terminal.address import is_remote
from tfrecord_io.terminal.flags import command
from tfrecord_io.terminal.printing import counted, printable


def print_listed(images: Images) -> None:
    """Prints what a listing found, and what the user should know about it."""
    ledger, table = images.ledger, images.table
    num_empty = pc.sum(pc.equal(table["size"], 0)).as_py() or 0
    text = (
        f"found {counted(table.num_rows - num_empty, 'image')} among "
        f"{counted(ledger.num_files, 'file')}"
    )
    counts = [
        (num_empty, "empty"),
        (ledger.copies, "copies in a second tree"),
        (ledger.excluded, "excluded"),
        *((count, reason.replace("_", " ")) for reason, count in ledger.ignored.items()),
        (len(ledger.rejects), "rejected"),
    ]
    parts = ", ".join(f"{count:,} {what}" for count, what in counts if count)
    say(f"{text} ({parts})" if parts else text, *layout_lines(images))
    say(*(f"warning: {note}" for note in ledger.notes))


def layout_lines(images: Images) -> list[str]:
    """Returns how the folders were read: their roles, an example, and the names of each level."""
    if not images.layout or not images.table.num_rows:
        return []
    levels = [role for role, _ in images.layout if role in ROLES]
    parts = next(iterate_refs(images.table.slice(0, 1))).path.split("/")
    levels += ["*"] * (len(parts) - 1 - len(levels))
    width = max(len(role) for role, _ in images.layout)
    return [
        f"the folders were read as {' / '.join([*levels, 'file'])}, such as "
        + printable(" / ".join(parts)),
        *(f"  {role:<{width}}  {names}" for role, names in images.layout),
    ]


def say(*lines: str) -> None:
    """Prints what happens, beside the output of the command."""
    for line in lines:
        print(line, file=sys.stderr, flush=True)


def print_built(output: str) -> None:
    """Prints what a finished build made in the folder or URL `output`."""
    dataset = Manifest.load(output)
    print(_table(dataset))
    print(f"{counted(dataset.counts['files'], 'file')}:")
    for what, count in dataset.ledger:
        print(f"{count:>9,} {what}")
    if dataset.rejects:
        print(f"the rejected files are in {output}/{REJECTS_FILE_NAME}")
    resizer = resize.resizer(Preprocessing.from_dict(dataset.preprocessing).resize)
    shards = counted(len(dataset.shards), "shard")
    print(f"{dataset.num_bytes / 1e6:,.1f} MB in {shards}, resized with {resizer}")
    for alarm in alarms(dataset.audit):
        print(f"warning: {printable(alarm)}; see {output}/{REPORT_FILE_NAME}")
    steps = f"{command('verify')} {shlex.quote(output)}"
    steps += f"\n  open {output}/{REPORT_FILE_NAME}: pictures of each class, and findings"
    if is_remote(output):
        steps = f"copy it to a disk and run {command('verify')}, or train from the store"
    print(f"\nThe dataset is in {output}. Next:\n  {steps}")


def print_complete(output: str) -> None:
    """Prints that the output, a folder or URL, was already complete."""
    dataset = Manifest.load(output)
    print(
        f"{output} is complete: {counted(dataset.num_examples, 'example')} in "
        f"{counted(len(dataset.shards), 'shard')}; nothing to do"
    )


def _table(dataset: Manifest) -> str:
    """Returns a text table of the number of examples by split and class."""
    rows = [["split", *map(printable, dataset.label_names), "examples", "shards"]]
    for name, split in dataset.splits.items():
        counts = [f"{count:,}" for count in split.label_counts]
        rows.append([name, *counts, f"{split.num_examples:,}", f"{len(split.shards):,}"])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [[row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])] for row in rows]
    return "\n".join(map("  ".join, lines))
